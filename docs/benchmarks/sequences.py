"""Attention over sequences: every way to attend with labels between positions, on the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import relgraph as rg
from docs.benchmarks import peers
from docs.benchmarks.sequence_inputs import SMALL_LENGTH, Inputs, Meaning, check
from docs.benchmarks.sweeps import Sequence
from docs.benchmarks.ways import Made, NotRun, Side, Way
from relgraph.impl.native import build

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


def peer(function: Callable[..., tuple[Callable[[], Tensor], str]], meaning: Meaning) -> Callable[[Inputs], Made]:
    """Another library's attention."""

    def make(inputs: Inputs) -> Made:
        leaves = inputs.leaves(meaning)
        call, note = function(*leaves.values())
        return Made(call, leaves, note=note)

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
    return Made(
        call, leaves, trains, "key term only" if trains else "key term only; forward only: no training on a CPU"
    )


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


def ways(setting: Sequence) -> list[Way[Sequence]]:
    """Every way, with the floor first."""
    cuda = setting.device.startswith("cuda")
    key_only, tied, positions = Meaning("distance", "key"), Meaning("distance", "tied"), Meaning("positions", "key")
    none, distance, arbitrary = Meaning("none", "none"), Meaning(), Meaning("arbitrary")
    found: list[Way[Sequence]] = [Way(FLOOR, sdpa, linear, none)]
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


SIDE: Side[Sequence] = Side(
    ways, Inputs, lambda s: replace(s, length=SMALL_LENGTH, batch=min(s.batch, 2), heads=min(s.heads, 2)), check
)
