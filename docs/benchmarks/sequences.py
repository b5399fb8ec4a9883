"""Attention over sequences: every way to attend with labels between positions, on the same numbers.

A float64 formula that builds a vector for every pair checks each way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from docs.benchmarks import peers
from docs.benchmarks.ways import Made, NotRun, Way, compare, with_gradients
from relgraph.impl.native import build

SAMPLED_ROWS = 8
SMALL_LENGTH = 72


@dataclass(frozen=True)
class Sequence:
    """Attention over a sequence: B batch, H heads, N length, D size, R labels; distances are clipped at R // 2."""

    batch: int = 1
    heads: int = 8
    length: int = 1024
    size: int = 64
    labels: int = 32
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def clip(self) -> int:
        """k of clipped distances: 2k + 1 labels."""
        return self.labels // 2

    def small(self) -> Sequence:
        """The setting at which all gradients are checked."""
        return replace(self, length=SMALL_LENGTH, batch=min(self.batch, 2), heads=min(self.heads, 2))


@dataclass(frozen=True)
class Meaning:
    """Describes what a way computes.

    Attributes:
        labels: ``"none"``; ``"distance"``, clipped at k; ``"arbitrary"``, R written out; ``"positions"``, i - j.
        tables: ``"none"``, ``"key"``, ``"both"``, or ``"tied"``, one table for keys and values.
    """

    labels: str = "distance"
    tables: str = "both"


class Inputs:
    """The numbers of one setting. Each is drawn on first use from its own seed, so that all ways get the same."""

    def __init__(self, setting: Sequence) -> None:
        self.setting = setting
        self.dtype = getattr(torch, setting.dtype)
        self.device = torch.device(setting.device)
        self._tables: dict[tuple[str, str], Tensor] = {}

    def _draw(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device, self.dtype)

    def _projected(self, seed: int) -> Tensor:
        s = self.setting
        return self._draw(seed, s.batch, s.heads, s.length, s.size)

    @cached_property
    def qkv(self) -> dict[str, Tensor]:
        """Query, key and value ``[B, H, N, D]``, which require gradients."""
        names = ("query", "key", "value")
        return {name: self._projected(seed).requires_grad_() for seed, name in enumerate(names, 1)}

    @cached_property
    def grad(self) -> Tensor:
        """The gradient of the output."""
        return self._projected(4)

    def table(self, which: str, labels: str) -> Tensor:
        """A table ``[R, D]``; ``which`` is key or value."""
        if (which, labels) not in self._tables:
            rows = {"distance": 2 * self.setting.clip + 1, "positions": 2 * self.setting.length - 1}
            seed = 5 if which == "key" else 6
            drawn = self._draw(seed, rows.get(labels, self.setting.labels), self.setting.size)
            self._tables[which, labels] = (drawn / math.sqrt(self.setting.size)).requires_grad_()
        return self._tables[which, labels]

    @cached_property
    def written(self) -> Tensor:
        """``[N, N]``, labels in random order, in a small type."""
        s = self.setting
        kind = torch.int8 if s.labels < 128 else torch.int16
        generator = torch.Generator().manual_seed(7)
        return torch.randint(s.labels, (s.length, s.length), dtype=kind, generator=generator).to(self.device)

    def ids(self, labels: str, rows: Tensor | None = None) -> Tensor:
        """The label of every pair in some rows, int64."""
        at = torch.arange(self.setting.length, device=self.device)
        rows = at if rows is None else rows
        if labels == "arbitrary":
            return self.written[rows].long()
        if labels == "positions":
            return rows[:, None] - at + self.setting.length - 1
        clip = self.setting.clip
        return (at - rows[:, None]).clamp(-clip, clip) + clip

    def leaves(self, meaning: Meaning) -> dict[str, Tensor]:
        """All trainable tensors for ``meaning``."""
        leaves = dict(self.qkv)
        if meaning.tables != "none":
            leaves["key_table"] = self.table("key", meaning.labels)
        if meaning.tables == "both":
            leaves["value_table"] = self.table("value", meaning.labels)
        return leaves


def expected(inputs: Inputs, meaning: Meaning, rows: Tensor) -> dict[str, Tensor]:
    """Output and gradients of some rows, in float64, with a vector built for every pair."""
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.leaves(meaning).items()}
    picked = exact["query"][:, :, rows]
    scores = picked @ exact["key"].mT
    ids = None if meaning.tables == "none" else inputs.ids(meaning.labels, rows)
    if ids is not None:
        scores = scores + torch.einsum("bhid,ijd->bhij", picked, exact["key_table"][ids])
    weights = (scores / math.sqrt(inputs.setting.size)).softmax(-1)
    output = weights @ exact["value"]
    if ids is not None and meaning.tables != "key":
        table = exact["key_table" if meaning.tables == "tied" else "value_table"]
        output = output + torch.einsum("bhij,ijd->bhid", weights, table[ids])
    return with_gradients(output, exact, inputs.grad[:, :, rows].double())


def check(way: Way, made: Made, inputs: Inputs) -> None:
    """Compare outputs, and gradients if there are any, with float64: all rows if short, else some."""
    length = inputs.setting.length
    whole = length <= SMALL_LENGTH
    rows = torch.arange(length) if whole else torch.linspace(0, length - 1, SAMPLED_ROWS).long()
    rows = rows.to(inputs.device)
    wanted = expected(inputs, way.meaning, rows)
    with torch.set_grad_enabled(made.trains):
        output = made.call()
    got = with_gradients(output, made.leaves, inputs.grad) if made.trains else {"output": output}
    if not whole:
        got = {name: x[:, :, rows] for name, x in got.items() if name in ("output", "query")}
        wanted["query"] = wanted["query"][:, :, rows]
    compare(got, {name: wanted[name] for name in got}, inputs.dtype, way.name)


FLOOR = "SDPA, no relations"


def relgraph(impl: str, meaning: Meaning) -> Callable[[Inputs], Made]:
    """``rg.relation_attention`` with one implementation."""

    def make(inputs: Inputs) -> Made:
        leaves = inputs.leaves(meaning)
        s, written = inputs.setting, None
        labeler = rg.ClippedDistance(s.clip)
        if meaning.labels == "arbitrary":
            written = rg.DenseLabels(inputs.written, s.labels)

        def call() -> Tensor:
            q, k, v, *tables = leaves.values()
            labels = labeler(s.length) if meaning.labels == "distance" else written
            return rg.relation_attention(q, k, v, labels, *tables, impl=impl)

        return Made(call, leaves)

    return make


def plain(function: Callable[..., Tensor]) -> Callable[[Inputs], Made]:
    """A computation in plain torch over distance labels, which are written out once."""

    def make(inputs: Inputs) -> Made:
        leaves, ids = inputs.leaves(Meaning()), inputs.ids("distance")
        return Made(lambda: function(*leaves.values(), ids), leaves)

    return make


def sdpa(inputs: Inputs) -> Made:
    """Fused attention without relations."""
    query, key, value = inputs.qkv.values()
    return Made(lambda: scaled_dot_product_attention(query, key, value), inputs.qkv)


def cudnn(inputs: Inputs) -> Made:
    """Fused attention without relations by cuDNN, which torch does not always choose."""
    query, key, value = inputs.qkv.values()

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(query, key, value)

    try:
        call()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise NotRun(f"not run: cuDNN does not do this here ({(str(error).splitlines() or [''])[0][:120]})") from None
    return Made(call, inputs.qkv)


def peer(function: Callable[..., Callable[[], Tensor]], meaning: Meaning) -> Callable[[Inputs], Made]:
    """Another library's attention."""

    def make(inputs: Inputs) -> Made:
        leaves = inputs.leaves(meaning)
        return Made(function(*leaves.values()), leaves)

    return make


def flex(inputs: Inputs) -> Made:
    """FlexAttention, compiled: the score adds q·a^K at the label of the distance. It has no value term."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()
    s, leaves, trains = inputs.setting, inputs.leaves(Meaning("distance", "key")), inputs.device.type == "cuda"
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    # on a CPU it refuses trainable inputs, even if no gradient is needed
    query, key, value, table = (x if trains else x.detach() for x in leaves.values())

    def call() -> Tensor:
        terms = (query @ table.mT) / math.sqrt(s.size)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + terms[b, h, i, torch.clamp(j - i, -s.clip, s.clip) + s.clip]

        out = compiled(query, key, value, score_mod=score_mod)
        assert isinstance(out, Tensor)
        return out

    try:
        with torch.set_grad_enabled(trains):
            call()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the row reports any compiler error
        line = (str(error).splitlines() or [""])[0]
        raise NotRun(f"not run: does not compile here ({type(error).__name__}: {line[:120]})") from None
    return Made(call, leaves, trains)


def linear(s: Sequence) -> int:
    """Bytes for n·(d + R) numbers per head."""
    return 16 * s.batch * s.heads * s.length * (s.size + s.labels) * 4


def pairs(count: int, width: int | None = None) -> Callable[[Sequence], int]:
    """Bytes for ``count`` numbers per pair and head, with the given width in bytes or else the dtype's."""
    return lambda s: count * s.batch * s.heads * s.length**2 * (width or dtype_bytes(s))


def vectors(count: int) -> Callable[[Sequence], int]:
    """Bytes for ``count`` vectors per pair, and six numbers per pair and head."""
    return lambda s: pairs(6)(s) + count * s.size * s.length**2 * dtype_bytes(s)


def reference_memory(s: Sequence) -> int:
    """Bytes for six vectors per pair and head, in float32."""
    return pairs(6 * s.size, 4)(s)


def dtype_bytes(s: Sequence) -> int:
    """Of a number."""
    return torch.finfo(getattr(torch, s.dtype)).bits // 8


def ways(setting: Sequence) -> list[Way]:
    """Every way, with the floor first."""
    cuda = setting.device.startswith("cuda")
    key_only, tied, positions = Meaning("distance", "key"), Meaning("distance", "tied"), Meaning("positions", "key")
    none, distance, arbitrary = Meaning("none", "none"), Meaning(), Meaning("arbitrary")
    found: list[Way] = [Way(FLOOR, sdpa, linear, none)]
    compiled = not cuda and build.missing() is None
    flex_key = Way("FlexAttention, key term", flex, linear, key_only, compiles=True)
    paper = Way("paper's computation (eqs. 3–4)", plain(peers.paper), vectors(4), distance)
    fused = [*(["native"] if compiled else []), *(["triton"] if cuda else []), "chunked"]
    kinds = {"no labels": none, "distance": distance, "arbitrary labels": arbitrary, "distance, key term": key_only}
    for impl in fused:
        for what, meaning in kinds.items():
            found.append(Way(f"relgraph {impl}, {what}", relgraph(impl, meaning), linear, meaning))
        if impl == "triton":  # the most important ones come first, in case time is short
            found += [Way("SDPA, cuDNN", cudnn, linear, none), paper, flex_key]
    found += [
        Way("relgraph dense, distance", relgraph("dense", distance), pairs(8, 4), distance),
        Way("relgraph dense, arbitrary labels", relgraph("dense", arbitrary), pairs(8, 4), arbitrary),
        Way("relgraph reference, distance", relgraph("reference", distance), reference_memory, distance),
        *([] if cuda else [paper]),
        Way("split term, plain torch", plain(peers.split), pairs(10), distance),
        *([] if cuda else [flex_key]),
        Way("BERT relative_key", peer(peers.bert, positions), vectors(2), positions),
        Way("OpenNMT-py", peer(peers.opennmt, tied), vectors(3), tied),
    ]
    return found
