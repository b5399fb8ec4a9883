"""Layers and models whose rows are split over processes, compared with one process; and what is refused."""

from __future__ import annotations

from functools import partial

import torch
from torch import distributed, nn

import relgraph as rg
from relgraph.distributed import together
from tests import layers
from tests.distributed.worlds import BY_PLACE, caught
from tests.layers import attention_layer, encoder_layer

N, B, E, H = 16, 2, 16, 4
PTR = torch.tensor([0, 5, 12, 16])
METHODS = ("allgather", "ring", "ulysses")
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


def compare(mesh, name, method):
    """The largest differences from one process: of the output and of each parameter's gradient."""
    case, rank = CASES[name], mesh.get_local_rank()
    model, x = made(name)
    z = case.call(model, keep, x)
    weights = torch.linspace(0.5, 1.5, z.numel(), dtype=z.dtype).view(z.shape)
    (z.sin() * weights).sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model, x = made(name)
    layout = "head-tail" if "causal" in name or name == "transformer" else "even"
    with rg.distributed.context_parallel(mesh, method=method, layout=layout) as region:
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


def losses(mesh, method, *, dropout=0.0, half=False, checkpointing=False):
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
        rows = rg.distributed.Layout.even(N, mesh.size())
        for step in range(10):
            torch.manual_seed(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                if split:
                    with rg.distributed.context_parallel(mesh, method=method):
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
    "plain": {},
    "dropout": {"dropout": 0.3},
    "bfloat16": {"half": True},
    "checkpointing": {"dropout": 0.3, "checkpointing": True},
}


def refusals(mesh):
    """What raises within a region, by name and method: all processes go on afterwards."""
    rank, x, q = mesh.get_local_rank(), torch.randn(B, 4, E), torch.randn(B, H, 4, 8)
    whole = 4 * mesh.size()
    layer, labels, table = attention_layer(E, H, num_labels=7), rg.ClippedDistance(3)(whole), torch.randn(7, 8)
    nodes, edges = torch.randn(4, 2, 8), rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 7, q_len=4)
    stack = rg.RelationEncoder(encoder_layer(E, H, 32, 0.0, labeler=rg.ClippedDistance(3)), 1)
    packed = rg.ClippedDistance(3)(whole, ptr=torch.tensor([0, 3, whole]))
    short, longer = q[:, :, : 4 - rank], rg.ClippedDistance(3)(whole + min(rank, 1))
    calls = {
        "unequal lengths": lambda: rg.relation_attention(short, q, q, None),
        "unequal lengths of keys": lambda: rg.relation_attention(q, short, short, None),
        "other batches": lambda: rg.relation_attention(*[torch.randn(B + rank, H, 4, 8)] * 3, None),
        "another dtype": lambda: rg.relation_attention(*[q.double() if rank == 1 else q] * 3, None),
        "another order": lambda: rg.relation_attention(q, q, q, None, is_causal=rank == 1),
        "dropout on one process": lambda: rg.relation_attention(q, q, q, None, dropout_p=0.5 * (rank == 1)),
        "other labels": lambda: rg.relation_attention(q, q, q, differing(rank, whole), table),
        "labels of another length": lambda: rg.relation_attention(q, q, q, longer, table),
        "labels of a part": lambda: layer(x, labels=rg.ClippedDistance(3)(4)),
        "labels on one process": lambda: rg.relation_attention(q, q, q, rg.Window(9)(whole) if rank == 0 else None),
        "packed on one process": lambda: rg.relation_attention(
            *[q[0].transpose(0, 1)] * 3, packed if rank == 0 else labels, table
        ),
        "another kind on one process": lambda: rg.relation_attention(q, q, q, "labels" if rank == 1 else labels, table),
        "unequal lengths in a layer": lambda: layer(x[:, : 4 - rank], labels=labels),
        "unequal lengths in a stack": lambda: stack(x[:, : 4 - rank]),
        "labels of another length in a layer": lambda: layer(x, labels=longer),
        "labels for a layer of one process": lambda: layer(x, labels=labels if rank == 0 else None),
        "weights": lambda: layer(x, labels=labels, need_weights=True),
        "cache": lambda: layer(x, labels=labels, cache=rg.KVCache()),
        "edge_attention": lambda: rg.edge_attention(nodes, nodes, nodes, edges, table),
        "edge vectors": lambda: rg.relation_attention(q, q, q, edges, table, edge_attr=torch.randn(1, 3)),
        "mask of pairs without all keys": lambda: rg.relation_attention(
            q, q, q, labels, table, attn_mask=torch.zeros(4, 3)
        ),
    }
    calls |= differences(rank, q, labels, table) | refused_by_rows(rank, q, whole)
    calls |= in_layers(rank, x, layer)
    for method in METHODS:
        for name, call in calls.items():
            with rg.distributed.context_parallel(mesh, method=method):
                yield ("refused", name, method), caught(call)
        layout = rg.distributed.Layout.even(whole, mesh.size())
        with rg.distributed.context_parallel(mesh, method=method, layout=layout):
            yield ("refused", "lengths that are not those of the layout", method), caught(calls["unequal lengths"])
        with rg.distributed.context_parallel(mesh, method=method, layout=layout):
            in_layer = caught(calls["unequal lengths in a layer"])
            yield ("refused", "lengths in a layer that are not those of the layout", method), in_layer
        with rg.distributed.context_parallel(mesh, method=method):
            rows = rg.DenseLabels(torch.zeros(4 - min(rank, 1), whole, dtype=torch.int64), 7)
            call = lambda: rg.relation_attention(q, q, q, rows, table)  # noqa: B023, E731
            yield ("refused", "labels of other rows", method), caught(call)
    three = torch.randn(B, 3, 4, 8)
    for name, key in (("heads", three), ("heads of keys", three[:, :1])):
        with rg.distributed.context_parallel(mesh, method="ulysses"):
            query = three if name == "heads" else q
            call = lambda: rg.relation_attention(query, key, key, None, enable_gqa=True)  # noqa: B023, E731
            yield ("refused", name, "ulysses"), caught(call)
    with rg.distributed.context_parallel(mesh, method=METHODS[rank % 2]):
        yield ("refused", "other methods", "any"), caught(lambda: rg.relation_attention(q, q, q, None))
    split = rg.distributed.Layout.even(whole, mesh.size())
    turned = rg.distributed.Layout(split.runs[1:] + split.runs[:1])
    for name, layouts in {"named": ("even", "head-tail"), "given": (split, turned), "of both": ("even", split)}.items():
        region = rg.distributed.context_parallel(mesh, layout=layouts[min(rank, 1)])
        yield ("refused", f"other layouts, {name}", "any"), caught(region.__enter__)


def differences(rank, q, labels, table):
    """Calls of which one process gives another argument; it would change the answer, or what travels."""
    last, mask, ids = rank == 1, torch.ones(4, q.shape[2] * distributed.get_world_size()), labels.to_dense()[0]
    given = {
        "dropout_p": {"dropout_p": 0.5 if last else 0.4},
        "scale": {"scale": 1.0 if last else None},
        "q_offset": {"q_offset": 1 if last else 0},
        "q_offset tensors": {"q_offset": torch.tensor(int(last))},
        "score": {"score": rg.score.Softcap(2.0 if last else 3.0)},
        "weights of a score": {"score": rg.score.Additive(torch.ones(H, 8) if last else torch.ones(8))},
        "activations": {"score": rg.score.Additive(torch.ones(8), torch.tanh if last else torch.relu)},
        "functions of scores": {"score": nn.LeakyReLU(0.1 if last else 0.2)},
        "value_table": {"value_table": table if last else None},
        "key_table": {"key_table": table.expand(H, 7, 8) if last else table},
        "attn_mask": {"attn_mask": mask > 0 if last else mask},
        "attn_mask on one process": {"attn_mask": mask if last else None},
        "axes of attn_mask": {"attn_mask": mask[None, None] if last else mask},
        "row_scores": {"row_scores": torch.zeros(B, H, 4, 7) if last else None},
        "value_map": {"value_map": torch.zeros(7, 8, 8) if last else None},
        "content_bias": {"content_bias": torch.zeros(H, 8) if last else None},
        "enable_gqa": {"enable_gqa": last},
        "impl": {"impl": "dense" if last else "chunked"},
        "need_label_mass": {"need_label_mass": last},
        "need_lse": {"need_lse": last},
        "need_weights": {"need_weights": last},
    }
    attend = partial(rg.relation_attention_with_aux, q, q, q, labels)
    calls = {f"other {name}": partial(attend, **{"bias_table": table[:, 0]} | more) for name, more in given.items()}

    def under_autocast():
        with torch.autocast("cpu", enabled=last):
            attend()

    return calls | {
        "other value size": lambda: rg.relation_attention(q, q, q[..., : 8 - last], labels),
        "other value dtype": lambda: rg.relation_attention(q, q, q.double() if last else q, labels),
        "other gradients": lambda: rg.relation_attention(q, q.clone().requires_grad_(last), q, labels),
        "other autocast": under_autocast,
        "other ids": lambda: rg.relation_attention(q, q, q, ids.roll(int(last)), table),
    }


def refused_by_rows(rank, q, whole):
    """Calls that are refused for what the rows of one process have, and what each process refuses."""
    twice = torch.tensor([[1, 1, 0], [0, 0, whole - 1]])
    edges = rg.EdgeLabels(twice, torch.tensor([0, 1, 2]), 7, q_len=whole)
    summed = rg.EdgeLabels(twice, torch.tensor([0, 1, 2]), 7, q_len=whole, default=0, duplicates="sum")
    table, maps = torch.randn(7, 8), torch.randn(7, 8, 8)
    keys = torch.cat([q, q], 2)
    return {
        "parallel edges": lambda: rg.relation_attention(q, q, q, edges, table, impl="chunked"),
        "maps over parallel edges": lambda: rg.relation_attention(q, q, q, summed, value_map=maps),
        "a causal order without an offset": lambda: rg.relation_attention(q, keys, keys, None, is_causal=True),
    }


def in_layers(rank, x, layer):
    """Calls of a layer that one process gives something else."""
    last, labels = rank == 1, rg.ClippedDistance(3)(4 * distributed.get_world_size())
    attend = partial(layer, labels=labels)
    return {
        "other widths in a layer": lambda: attend(x[..., :-1] if last else x),
        "padding on one process": lambda: attend(x, key_padding_mask=torch.zeros(B, 4).bool() if last else None),
        "a mask of another length in a layer": lambda: attend(x, attn_mask=torch.zeros(4, 9 if last else 8).bool()),
        "ids without rows in a layer": lambda: layer(x, labels=torch.zeros(8).long() if last else labels),
    }


def differing(rank, length):
    return rg.DenseLabels(torch.full((length, length), rank), 7)


def sent(mesh):
    """Bytes that a call sends forward and backward, by method."""
    for method in METHODS:
        q, k, v = (torch.randn(B, H, N // mesh.size(), 8, requires_grad=True) for _ in range(3))
        with rg.distributed.context_parallel(mesh, method=method), rg.distributed.count_bytes() as counted:
            z = rg.relation_attention(q, k, v, None)
            forward = dict(counted)
            z.sum().backward()
        yield ("sent", method), (forward, dict(counted))


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


def compiled(mesh, method):
    """The differences of a layer that was compiled outside of regions: outside, within two regions, and outside."""
    layer, x = attention(), x_of(B, N, E)
    fast, labels = torch.compile(layer, backend="eager"), rg.ClippedDistance(3)(N)
    wanted = layer(x, labels=labels)
    found = [fast(x, labels=labels) - wanted]
    for _ in range(2):
        with rg.distributed.context_parallel(mesh, method=method) as region:
            rows, rank = region.layout_of(N), mesh.get_local_rank()
            found.append(fast(rows.shard(x, rank), labels=labels) - rows.shard(wanted, rank))
    found.append(fast(x, labels=labels) - wanted)
    return [float(each.detach().abs().max()) for each in found]


def all_cases(mesh):
    if mesh.size() == 4:
        for method in METHODS:
            yield ("compiled", method), caught(lambda: compiled(mesh, method))  # noqa: B023
    yield "comparisons", caught(lambda: comparisons(mesh))
    for name in CASES:
        for method in METHODS if name != "raw ids of own rows" else METHODS[:2]:
            yield (name, method), caught(lambda: compare(mesh, *(name, method)))  # noqa: B023
    for name, options in TRAINING.items():
        for method in METHODS:
            yield ("training", name, method), caught(lambda: losses(mesh, method, **options))  # noqa: B023
    yield from refusals(mesh)
    yield from sent(mesh)
