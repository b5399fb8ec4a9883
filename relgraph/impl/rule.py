"""Which implementation a call takes, and which calls each of them refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack  # pyright: ignore[reportMissingModuleSource]
from torch.autograd import forward_ad

from relgraph.arguments import check
from relgraph.call import Answer, Call, accumulation_dtype
from relgraph.impl import budget
from relgraph.impl.chunked.attend import attend as attend_chunked
from relgraph.impl.eager import dense, reference, rows
from relgraph.impl.eager.edges import attend as attend_edges
from relgraph.impl.native import build
from relgraph.impl.native.attend import attend as attend_native
from relgraph.impl.triton import limits
from relgraph.impl.triton.attend import attend as attend_triton
from relgraph.impl.triton.virtual import is_affine
from relgraph.score import DOT

IMPLEMENTATIONS: dict[str, Callable[[Call], Answer]] = {
    "reference": reference.attend,
    "dense": dense.attend,
    "chunked": attend_chunked,
    "edges": attend_edges,
    "native": attend_native,
    "triton": attend_triton,
}

SMALL_SCORES, DENSE_SCORES = 1 << 15, 1 << 18
"""Up to this many scores (B · H · N_q · N_k) a call on a CPU does not go by blocks without compiled kernels.

See docs/learn/implementations.md.
"""

PACKED_SHARE = 8
"""On a GPU, the limit for dense is this many times lower if graphs are packed: most scores then belong to no graph."""


class Rule(NamedTuple):
    """One row of the documented table: what ``impl=None`` takes, and when; ``{size}`` is :func:`size_in_words`."""

    impl: str
    when: str


RULES = {
    "weights of parallel edges": Rule(
        "reference", "attention weights are asked for, and parallel edges attend separately"
    ),
    "weights": Rule("dense", "attention weights are asked for"),
    "gpu": Rule(
        "triton",
        "the tensors are on a GPU, outside torch.export, RELGRAPH_TRITON=1 asks for the fused kernels, and they can do "
        "the call",
    ),
    "edges": Rule("native", "edges-only labels on a CPU, and the compiled kernels can do the call"),
    "other edges": Rule("edges", "edges-only labels: EdgeLabels with default=None"),
    "part": Rule(
        "native",
        "the call is a part of a larger one that drops weights, on a CPU, and the compiled kernels can do the call",
    ),
    "exported": Rule("dense", "inside torch.export, whose programs then hold torch's own operators only"),
    "decoding": Rule(
        "native",
        "there is one query row without gradients (a decoding step) on a CPU, and the compiled kernels can do the call",
    ),
    "one row": Rule("dense", "there is one query row"),
    "small": Rule("dense", "{size}, and no compiled kernels can do the call, or torch compiles it"),
    "cpu": Rule("native", "the tensors are on a CPU, and the compiled kernels can do the call"),
    "medium": Rule("dense", "{size}"),
    "large": Rule("chunked", "{size}"),
}
"""The table, top to bottom."""


def rule_for(call: Call) -> Rule:
    """The first row of the table that fits ``call``."""
    return RULES[_row_for(call)]


def _row_for(call: Call) -> str:
    plan, exporting = call.plan, torch.compiler.is_exporting()
    if call.need_weights:
        return "weights of parallel edges" if _parallel(call) else "weights"
    if not exporting and limits.ASKED and limits.is_gpu(call.query.device) and refusal(call, "triton") is None:
        return "gpu"
    if plan.edges_only:
        return "edges" if not exporting and _native(call) is None else "other edges"
    if call.dropout_seed is not None and _draws_of_larger(call) and not exporting and _native(call) is None:
        return "part"
    if exporting:
        return "exported"
    if plan.q_len == 1:
        return "decoding" if not _any_needs_gradient(call) and _native(call) is None else "one row"
    scores = size(call)
    if scores <= SMALL_SCORES and not budget.block_bytes(call.query.device) and not _kept(call):
        return "small"
    if _native(call) is None:
        return "cpu"
    return "medium" if scores <= dense_scores(call) else "large"


def size(call: Call) -> int:
    """How many numbers the scores of all pairs take; an additive score takes D of them."""
    batch, heads, _, width = call.query.shape
    a_pair = width if call.score.additive else 1
    return batch * heads * call.plan.q_len * call.plan.k_len * a_pair


def dense_scores(call: Call) -> int:
    """Up to this many scores ``dense`` comes before ``chunked``: on a CPU for speed, elsewhere by their memory."""
    room = budget.block_bytes(call.query.device)
    if not room:
        return DENSE_SCORES
    a_score = accumulation_dtype(call.query.dtype).itemsize * dense.NUMBERS_PER_SCORE * rows.maps_per_pair(call)
    return room // (a_score if call.plan.q_ptr is None else a_score * PACKED_SHARE)


def size_in_words(call: Call) -> str:
    """The number of scores and whether it is within its bound, as text, which dynamo cannot format."""
    per_pair = " · D" if call.score.additive else ""
    small = size(call) <= SMALL_SCORES and not budget.block_bytes(call.query.device)
    bound = SMALL_SCORES if small else dense_scores(call)
    compared = "at most" if size(call) <= bound else "more than"
    return f"B · H · N_q · N_k{per_pair} = {size(call):,} is {compared} {bound:,} scores"


def refusal(call: Call, impl: str) -> str | None:
    """Why the implementation cannot answer ``call``, and which one can; None if it can."""
    if impl in ("chunked", "edges") and call.need_weights:
        return f"impl={impl!r} never holds all attention weights; use impl='dense' for need_weights"
    if impl in ("chunked", "dense") and _parallel(call):
        return f"impl={impl!r} has one score per pair, so parallel edges cannot attend separately; use impl='edges'"
    if impl == "edges" and not call.plan.edges_only:
        return "impl='edges' attends only over listed pairs and needs EdgeLabels with default=None; use impl='chunked'"
    reason = _triton_refusal(call) if impl == "triton" else _native(call) if impl == "native" else None
    return None if reason is None else f"impl={impl!r} {reason}"


def _draws_of_larger(call: Call) -> bool:
    """Whether the call draws the dropout of a larger one.

    Parts of one call differ in size, but size must not lead a part to kernels that draw other numbers.
    """
    return call.dropout_seed is not None and call.dropout_p > 0.0 and call.keep is None


def _native(call: Call) -> str | None:
    """Why the compiled kernels cannot answer this call, and what to use instead; None if they can.

    The options of the call come first, so that kernels that it cannot use are not compiled.
    """
    if call.need_weights:
        holder = "reference" if _parallel(call) else "dense"
        return f"never holds all attention weights; use impl='{holder}' for need_weights"
    edges_only = call.plan.edges_only
    other = f"use impl='{'edges' if edges_only else 'chunked'}'"
    if not edges_only and _parallel(call):
        return "has one score per pair, so parallel edges cannot attend separately; use impl='edges'"
    if not edges_only and call.edge is not None and call.plan.by_function:
        return f"has no edge_attr over ids by function; write the labels out by .dense(), or {other}"
    if not edges_only and call.edge is not None and call.edge.key is not None and call.score.additive:
        return f"has no edge_key over all pairs with score=Additive; {other}"
    if call.score.code is None:
        return f"takes scores of relgraph.score and named activations, got a function of your own; {other}"
    if call.score.additive and any("key" in tables.batched for tables in call.tables):
        return f"has no key_table with a batch axis with score=Additive; {other}"
    if call.score.additive and call.edge is not None and call.edge.key is not None and _needs_gradient(call.edge.attr):
        return f"gives no gradient to edge_attr with edge_key and score=Additive; {other}"
    if edges_only and call.tables[0].query is not None and "query" in call.tables[0].batched:
        return f"has no query_table with a batch axis over listed pairs; {other}"
    if call.query.device.type not in ("cpu", "meta"):  # tensors on meta count as CPU tensors
        return f"needs CPU tensors, got {call.query.device.type}; {other}"
    why = build.missing()
    return None if why is None else f"has no compiled kernels: {why}; {other}"


def _kept(call: Call) -> bool:
    """Whether a small call uses compiled kernels: in eager code, as operators are fused elsewhere."""
    return not torch.compiler.is_compiling() and _native(call) is None


def _triton_refusal(call: Call) -> str | None:
    """Why the kernels cannot answer this call, and what to use instead; None if they can."""
    query, plan = call.query, call.plan
    others = "impl='edges'" if plan.edges_only else "impl='chunked'"
    batched = sorted(set().union(*(tables.batched for tables in call.tables)))
    refused = {
        "edge_attr": call.edge is not None,
        "value_map": call.value_map is not None,
        "key_gate or value_gate": call.gates is not None,
        "row_scores": any(tables.rows is not None for tables in call.tables),
        f"{' or '.join(f'{name}_table' for name in batched)} with a batch axis": bool(batched),
        "gradient of attn_mask": _needs_gradient(call.mask),
        "need_label_mass with dropout_p": call.need_mass and call.dropout_p > 0.0,
        "score but dot products": call.score is not DOT,
        "recording in a CUDA graph": limits.is_recording(query.device),
    }
    for name, given in refused.items():
        if given:
            return f"has no {name}; use {others}"
    if not limits.HAS_TRITON:
        return f"needs the package triton (pip install triton); use {others}"
    if query.device.type != "cuda" and not (query.device.type == "cpu" and limits.interpreted()):
        return f"needs CUDA tensors (or TRITON_INTERPRET=1, slow, on a CPU), got {query.device.type}; use {others}"
    unfit = limits.unfit(query)
    if unfit is not None:
        return f"{unfit}; use {others}"
    if query.dtype not in limits.DTYPES:
        return f"takes float16, bfloat16 and float32, got {query.dtype}; use {others}"
    if max(query.shape[-1], call.value.shape[-1]) > limits.MOST_SIZE:
        sizes = f"{query.shape[-1]} and {call.value.shape[-1]}"
        return f"takes heads of at most {limits.MOST_SIZE} numbers, got {sizes}; use {others}"
    if call.need_weights:
        holder = "reference" if _parallel(call) else "dense"
        return f"never holds all attention weights; use impl='{holder}' for need_weights"
    if not plan.edges_only and any(part.csr is not None and part.csr.parallel for part in plan.parts):
        return "has one label per pair and cannot sum the labels of parallel edges; use impl='chunked'"
    if plan.by_function:
        return f"does not compute ids by function block by block; write the labels out by .dense(), or use {others}"
    if plan.columns > limits.MOST_COLUMNS and _sums_by_label(call):
        most = limits.MOST_COLUMNS - len(plan.parts)
        return f"sums at most {most} labels that are written out, got {plan.total_labels}; use {others}"
    return None


def _sums_by_label(call: Call) -> bool:
    """Whether the call needs sums by written-out labels, which are bounded; sums by distance are not."""
    tables = any(table is not None for part in call.tables for table in part)
    return (call.plan.edges_only or not is_affine(call.plan)) and (tables or call.need_mass)


def _parallel(call: Call) -> bool:
    """Whether parallel edges may attend separately."""
    return any(part.edges_only and part.csr is not None and part.csr.parallel for part in call.plan.parts)


def _any_needs_gradient(call: Call) -> bool:
    """Whether autograd follows the call."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.tensors())


def _needs_gradient(mask: Tensor | None) -> bool:
    return mask is not None and mask.requires_grad and torch.is_grad_enabled()


def choose(call: Call, impl: str | None) -> str:
    """The implementation that answers ``call``: the one asked for, or the first row of the table that fits.

    Args:
        call: the checked call.
        impl: the name that the user gave, or None.
    """
    if impl is not None:
        check.choice("impl", impl, tuple(IMPLEMENTATIONS))
    _check_transforms(call, impl)
    if impl is None:
        return rule_for(call).impl
    reason = refusal(call, impl)
    if reason is not None:
        raise NotImplementedError(reason)
    return impl


def _check_transforms(call: Call, impl: str | None) -> None:
    """Raise NotImplementedError for torch.func and forward mode, unless the implementation is plain torch."""
    if torch.compiler.is_compiling() or impl in ("reference", "dense"):
        return
    if peek_interpreter_stack() is not None:
        what = "torch.func transforms (grad, vmap, jvp, ...)"
    elif forward_ad._current_level >= 0 and (
        call.score.function is not None
        or any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in call.tensors())
    ):
        what = "forward-mode derivatives"
    else:
        return
    raise NotImplementedError(
        f"{what} need impl='reference' or 'dense', got impl={impl!r}: "
        "the other implementations define their own backward"
    )
