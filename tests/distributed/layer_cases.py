"""Layers and models whose rows are split over processes, compared with one process."""

from __future__ import annotations

import torch
from torch import distributed, nn

import relgraph as rg
from relgraph.distributed import together
from tests import layers
from tests.distributed.layer_refusals import B, E, H, refusals
from tests.distributed.worlds import BY_PLACE, caught
from tests.layers import attention_layer, encoder_layer

N = 16
PTR = torch.tensor([0, 5, 12, 16])
PADDING = torch.arange(N) >= torch.tensor([[N], [11]])
LEFT = torch.arange(N) < torch.tensor([[0], [5]])


class Layer:
    """A module, its input, and how it is called: ``cut(x, dim)`` gives the rows of this process."""

    def __init__(self, make, call, rows=1):
        self.make, self.call, self.rows = make, call, rows


def encoder(**options):
    layer = encoder_layer(E, H, 32, 0.0, labeler=rg.ClippedDistance(3), dtype=torch.float64, **options)
    return rg.RelationEncoder(layer, 2)


def transformer(**options):
    return layers.transformer(E, H, 2, 2, 32, 0.0, labeler=rg.ClippedDistance(3), dtype=torch.float64, **options)


def attention(**options):
    return attention_layer(E, H, num_labels=7, dtype=torch.float64, **options)


def x_of(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def both(model, cut, x, **options):
    """Source and target with positions, padding on both."""
    pad = cut(PADDING, 1)
    return model(
        cut(x, 1), cut(x.flip(1), 1), src_key_padding_mask=pad, memory_key_padding_mask=pad, tgt_key_padding_mask=pad,
        **options,
    )  # fmt: skip


CASES = {
    "encoder": Layer(encoder, lambda m, cut, x: m(cut(x, 1))),
    "encoder causal": Layer(encoder, lambda m, cut, x: m(cut(x, 1), is_causal=True)),
    "encoder with padding": Layer(encoder, lambda m, cut, x: m(cut(x, 1), src_key_padding_mask=cut(PADDING, 1))),
    "encoder with both masks": Layer(
        encoder,
        lambda m, cut, x: m(cut(x, 1), cut(torch.ones(N, N).triu(4).bool(), 0), cut(PADDING, 1)),
    ),
    "without a batch": Layer(encoder, lambda m, cut, x: m(cut(x[0], 0)), rows=0),
    "packed graphs": Layer(
        lambda: attention(per_head=True),
        lambda m, cut, x: m(cut(x[0], 0), labels=rg.DistanceLabels(N, lookup=range(7), left=3, ptr=PTR)),
        rows=0,
    ),
    "key heads": Layer(
        lambda: attention_layer(E, 2 * H, num_kv_heads=H, num_labels=7, dtype=torch.float64),
        lambda m, cut, x: m(cut(x, 1), labels=rg.ClippedDistance(3)(N)),
    ),
    "raw ids": Layer(attention, lambda m, cut, x: m(cut(x, 1), labels=(torch.arange(N * N) % 7).view(N, N))),
    "raw ids of own rows": Layer(
        attention, lambda m, cut, x: m(cut(x, 1), labels=cut((torch.arange(N * N) % 7).view(N, N), 0))
    ),
    "transformer": Layer(transformer, both),
    "transformer with sinusoids": Layer(lambda: transformer(positions="sinusoidal"), both),
    "transformer with learned positions": Layer(
        lambda: transformer(positions=tuple(rg.nn.LearnedPositions(E, N, dtype=torch.float64) for _ in range(2))), both
    ),
    "padding on the left": Layer(
        lambda: transformer(positions="sinusoidal"),
        lambda m, cut, x: m(cut(x, 1), cut(x, 1), src_key_padding_mask=cut(LEFT, 1), tgt_key_padding_mask=cut(LEFT, 1)),
    ),
    "memory labeler": Layer(lambda: transformer(memory_labeler=rg.ClippedDistance(2)), both),
}


def keep(x, _):
    return x


def made(name):
    torch.manual_seed(0)
    return CASES[name].make(), x_of(B, N, E)


def compare(mesh, name):
    """The largest differences from one process: of the output and of each parameter's gradient."""
    case, rank = CASES[name], mesh.get_local_rank()
    model, x = made(name)
    z = case.call(model, keep, x)
    weights = torch.linspace(0.5, 1.5, z.numel(), dtype=z.dtype).view(z.shape)
    (z.sin() * weights).sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model, x = made(name)
    layout = "head-tail" if "causal" in name or name == "transformer" else "even"
    with rg.distributed.context_parallel(mesh, layout=layout) as region:
        rows = region.layout_of(N)

        def cut(whole, dim):
            return rows.shard(whole, rank, dim)

        mine = case.call(model, cut, x)
        (mine.sin() * cut(weights, case.rows)).sum().backward()
        again = region.gather(mine, case.rows)
    values = [(mine, cut(z, case.rows)), (again, z)]
    for parameter, other in zip(model.parameters(), wanted, strict=True):
        if other is None:
            assert parameter.grad is None
            continue
        distributed.all_reduce(parameter.grad)
        values.append((parameter.grad, other))
    return [float((a - b).detach().abs().max()) for a, b in values]


def losses(mesh, *, dropout=0.0, half=False, checkpointing=False):
    """The losses of ten training steps under DistributedDataParallel, and those of one process."""
    rank, found = mesh.get_local_rank(), []
    for split in (False, True):
        torch.manual_seed(1)
        options = {"impl": BY_PLACE} if dropout else {}
        layer = attention_layer(E, H, dropout, num_labels=7, **options)
        model = nn.Sequential(nn.Linear(E, E), layer, nn.Linear(E, E))
        x, y, labels = torch.randn(B, N, E), torch.randn(B, N, E), rg.ClippedDistance(3)(N)
        trained = Steps(model, labels, checkpointing)
        if split:
            trained = nn.parallel.DistributedDataParallel(trained)
        optimizer, mine = torch.optim.Adam(model.parameters(), 1e-2), []
        rows = rg.distributed.Layout(N, mesh.size())
        for step in range(10):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                if split:
                    with rg.distributed.context_parallel(mesh):
                        z = trained(rows.shard(x, rank))
                        loss = (z.float() - rows.shard(y, rank)).square().mean()
                        loss.backward()
                else:
                    loss = (trained(x).float() - y).square().mean()
                    loss.backward()
            optimizer.step()
            whole = loss.detach().clone()
            if split:
                distributed.all_reduce(whole)
                whole /= mesh.size()
            mine.append(float(whole))
        found.append(mine)
    return found


class Steps(nn.Module):
    """Layers one after the other, of which the attention gets labels."""

    def __init__(self, layers, labels, checkpointing):
        super().__init__()
        self.layers, self.labels, self.checkpointing = layers, labels, checkpointing

    def forward(self, x):
        first, attention, last = self.layers
        x = first(x)
        if self.checkpointing:
            x = torch.utils.checkpoint.checkpoint(attention, x, labels=self.labels, use_reentrant=False)
        else:
            x = attention(x, labels=self.labels)
        return last(x)


TRAINING = {
    "dropout": {"dropout": 0.3},
    "bfloat16": {"half": True},
    "checkpointing": {"dropout": 0.3, "checkpointing": True},
}


def comparisons(mesh):
    """How often processes compare something in calls of a layer with new labels that are equal, by call."""
    found, original = [], together.all_gather
    layer, x = attention_layer(E, H, num_labels=7), torch.randn(B, 4, E)

    def counted(*args):
        found[-1] += 1
        return original(*args)

    with rg.distributed.context_parallel(mesh):
        together.all_gather = counted
        for _ in range(3):
            found.append(0)
            layer(x, labels=rg.ClippedDistance(3)(4 * mesh.size()), is_causal=True)
    together.all_gather = original
    return found


def compiled(mesh):
    """The differences of a layer that was compiled outside of regions: outside, within a region, and outside."""
    layer, x = attention(), x_of(B, N, E)
    fast, labels = torch.compile(layer, backend="eager"), rg.ClippedDistance(3)(N)
    wanted = layer(x, labels=labels)
    found = [fast(x, labels=labels) - wanted]
    with rg.distributed.context_parallel(mesh) as region:
        rows, rank = region.layout_of(N), mesh.get_local_rank()
        found.append(fast(rows.shard(x, rank), labels=labels) - rows.shard(wanted, rank))
    found.append(fast(x, labels=labels) - wanted)
    return [float(each.detach().abs().max()) for each in found]


def all_cases(mesh):
    if mesh.size() == 4:
        yield "compiled", caught(lambda: compiled(mesh))
    yield "comparisons", caught(lambda: comparisons(mesh))
    for name in CASES:
        yield name, caught(lambda: compare(mesh, name))  # noqa: B023
    for kind, options in TRAINING.items():
        yield ("training", kind), caught(lambda: losses(mesh, **options))  # noqa: B023
    yield from refusals(mesh)
