"""Layers that are split by heads over processes, each beside the same layer on one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import relgraph as rg
from tests.distributed.worlds import BY_PLACE
from tests.layers import attention_layer

WIDTH, HEADS, LENGTH, BATCH = 32, 8, 10, 2
LABELER = rg.ClippedDistance(2)

ENCODER = {"self_attn": rg.distributed.HeadParallel(), "linear1": ColwiseParallel(), "linear2": RowwiseParallel()}
"""How an encoder layer is split."""


class Case(NamedTuple):
    """A layer of 8 heads and a call of it."""

    name: str
    make: Callable[[], nn.Module]
    call: Callable[[nn.Module, Tensor], Any]


def attention(name: str, labels: Any = None, call: dict[str, Any] | None = None, **options: Any) -> Case:
    """Attention with these options, called with these labels and arguments."""
    labels = LABELER(LENGTH) if labels is None else labels
    given = {"num_labels": labels.num_labels, **options}
    arguments = {"labels": labels, **(call or {})}
    return Case(name, lambda: attention_layer(WIDTH, HEADS, **given), lambda layer, x: layer(x, **arguments))


def edges(**options: Any) -> rg.EdgeLabels:
    generator = torch.Generator().manual_seed(3)
    pairs = torch.unique(torch.randint(LENGTH, (2, 40), generator=generator), dim=1)
    ids = torch.randint(5, (pairs.shape[1],), generator=generator)
    return rg.EdgeLabels(pairs, ids, 5, q_len=LENGTH, **options)


def memory(layer: nn.Module, x: Tensor) -> Any:
    """Attention from x to a memory of other widths."""
    key = torch.linspace(-1, 1, BATCH * 6 * 12, dtype=x.dtype).view(BATCH, 6, 12)
    labels = rg.DenseLabels(torch.arange(60).view(LENGTH, 6) % 5, 5)
    return layer(x, key, key[..., :7].contiguous(), labels=labels)


def cached(layer: nn.Module, x: Tensor) -> Any:
    """Row by row, with a cache."""
    cache = rg.KVCache()
    parts = [layer(x[:, i : i + 3], labels=LABELER(LENGTH), is_causal=True, cache=cache) for i in range(0, LENGTH, 3)]
    return torch.cat(parts, 1)


def with_mass(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, labels=LABELER(LENGTH), need_weights=True, need_label_mass=True)


def unbatched(layer: nn.Module, x: Tensor) -> Any:
    return layer(x[0], labels=LABELER(LENGTH), need_label_mass=True)


class Scaled(nn.Module):
    """A function of scores with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def cases() -> Iterator[Case]:
    """All of them."""
    mask = torch.arange(HEADS * LENGTH * LENGTH).view(1, HEADS, LENGTH, LENGTH) % 3 == 0
    padding = torch.arange(LENGTH) >= torch.tensor([LENGTH, 7])[:, None]
    rows = torch.linspace(-1, 1, BATCH * HEADS * LENGTH * 5, dtype=torch.float64).view(BATCH, HEADS, LENGTH, 5)
    ptr = torch.tensor([0, 4, LENGTH])
    yield attention("packed weight")
    yield attention("separate bias", bias=("query", "output"), impl="dense")
    yield Case("separate weights", lambda: attention_layer(WIDTH, HEADS, kdim=12, vdim=7, num_labels=5), memory)
    yield attention("grouped", num_kv_heads=4, per_head=True)
    yield attention("head size", head_dim=6, scale=0.3)
    yield attention("per head", tables=("key", "value", "query", "bias"), per_head=True)
    yield attention("shared", tables=("key", "value", "query", "bias"))
    yield attention("mixed", tables=("key", "bias"), per_head=("bias",))
    yield attention("tied per head", tie_tables=True, per_head=True)
    yield attention("frozen per head", frozen=1, per_head=True, tables=("key", "bias"))
    yield attention("sum", rg.SumLabels(LABELER(LENGTH), edges(default=0)), per_head=("key",), frozen=(1, None))
    yield attention("edges by default", edges(default=LABELER(LENGTH)), call={"is_causal": True})
    yield attention("no tables", rg.Window(3)(LENGTH), num_labels=None)
    yield attention("query biases", content_bias=True, position_bias=True, sink=True)
    yield attention("additive with a parameter", score=rg.score.Additive.learned(HEADS, WIDTH // HEADS, Scaled()))
    yield attention("bilinear", score=rg.score.Bilinear.learned(5, HEADS, WIDTH // HEADS), tables=("bias",))
    yield attention("function", score=Scaled())
    yield attention("bases", value_map=2)
    yield attention("gates", key_gate=True, value_gate=True)
    features = torch.linspace(-1, 1, 3 * len(edges().ids), dtype=torch.float64).view(-1, 3)
    yield attention("features of edges", edges(default=0), {"edge_attr": features}, edge_dim=3)
    yield attention("masks", call={"attn_mask": mask, "key_padding_mask": padding})
    yield attention("rows", tables=("value",), call={"row_scores": rows})
    yield attention("by sample", rg.DenseLabels(torch.arange(2 * LENGTH**2).view(2, LENGTH, LENGTH) % 5, 5))
    yield attention("chunked", impl="chunked")
    yield attention("dropout", dropout=0.4, impl=BY_PLACE)
    yield attention("dropout of edges", edges(), dropout=0.4, impl=BY_PLACE)
    yield Case("mass", lambda: attention_layer(WIDTH, HEADS, num_labels=5), with_mass)
    yield Case("no batch", lambda: attention_layer(WIDTH, HEADS, num_labels=5), unbatched)
    yield Case("cache", lambda: attention_layer(WIDTH, HEADS, num_labels=5), cached)
    yield Case(
        "packed batch", lambda: attention_layer(WIDTH, HEADS, num_labels=5, per_head=("value",)),
        lambda layer, x: layer(x[0], labels=LABELER(LENGTH, ptr=ptr), need_label_mass=True),
    )  # fmt: skip


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and gradients, whole, by the names that they have on one process."""
    found: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        for what, x in (("", parameter.detach()), (" gradient", grad)):
            found[name + what] = x.full_tensor() if isinstance(x, DTensor) else x
    for name in [name for name in found if ".q_proj" in f".{name}"]:
        parts = [name.replace("q_proj", f"{other}_proj") for other in "qkv"]
        if all(part in found for part in parts):
            rows = [found.pop(part) for part in parts]
            same = len({x.shape[1:] for x in rows}) == 1
            found[name.replace("q_proj", "in_proj")] = torch.cat(rows if same else [x.flatten() for x in rows])
    return found


def results(module: nn.Module, case: Case, x: Tensor) -> dict[str, Tensor]:
    """Outputs, the loss, and parameters with gradients."""
    x = x.detach().requires_grad_()
    module.zero_grad()
    torch.manual_seed(7)
    outputs = case.call(module, x)
    flat = torch.utils._pytree.tree_leaves(outputs)
    loss = sum((out.sin() * (i + 1)).sum() for i, out in enumerate(flat))
    loss.backward()
    assert x.grad is not None
    given = {f"output {i}": out.detach() for i, out in enumerate(flat)}
    return {**given, "loss": loss.detach(), "gradient of x": x.grad, **parameters(module)}


def check_case(case: Case, mesh: Any, dtype: torch.dtype, tolerance: float) -> None:
    """Raise unless the split layer gives what the layer on one process gives."""
    torch.manual_seed(1)
    plain = case.make().to(dtype)
    for parameter in plain.parameters():  # such as biases that begin at zero
        nn.init.normal_(parameter, std=0.3)
    if plain.tables is not None:
        for table in plain.tables.modules():
            if isinstance(table, rg.nn.LabelTable):
                table._clear_frozen()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype)
    split = parallelize_module(copy.deepcopy(plain), mesh, rg.distributed.HeadParallel())
    assert any(isinstance(p, DTensor) for p in split.parameters())
    for p in split.parameters():
        assert isinstance(p, DTensor)
    wanted, got = results(plain, case, x), results(split, case, x)
    for p in split.parameters():
        assert isinstance(p.grad, DTensor) and p.grad.placements == p.placements
    compare(case.name, got, wanted, tolerance)


def compare(name: str, got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    """Raise unless both have the same values under the same names."""
    assert set(got) == set(wanted), (name, set(got) ^ set(wanted))
    for what, value in wanted.items():
        assert got[what].shape == value.shape, (name, what)
        off = float((got[what] - value).abs().max()) if value.numel() else 0.0
        assert off <= tolerance * max(1.0, float(value.abs().max())), (name, what, off)
