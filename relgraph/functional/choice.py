"""Which implementation a call takes and why the others cannot take it, without computing attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from relgraph.functional.check import LabelsLike, Maps, Table, check_call
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.rule import choose, notes, refusal, rule_for, size_in_words
from relgraph.score import Score


@final
@dataclass(frozen=True, repr=False)
class ImplChoice:
    """The answer of :func:`~relgraph.which_impl`; it prints as a few lines of text.

    Args:
        impl: the implementation that answers the call.
        reason: why it was chosen: the row of the rule that applies, or that you named it.
        refused: each implementation that does not support the call, with the reason and an alternative.
        notes: on a GPU, whether the fused kernels of ``"triton"`` passed their self-check on the device.

    Example:
        >>> x = torch.randn(1, 8, 5, 16)
        >>> choice = rg.which_impl(x, x, x, rg.ClippedDistance(2)(5))
        >>> choice.impl, "edges" in choice.refused, "chunked" in choice.refused
        ('dense', True, False)
    """

    impl: str
    reason: str
    refused: dict[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        able = [name for name in IMPLEMENTATIONS if name != self.impl and name not in self.refused]
        lines = [f"impl={self.impl!r}: {self.reason}"]
        lines += [f"able too: {', '.join(able)}"] if able else []
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, *(f"refused: {reason}" for reason in self.refused.values())])


def which_impl(  # noqa: D417
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: LabelsLike,
    key_table: Table = None,
    value_table: Table = None,
    query_table: Table = None,
    bias_table: Table = None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    q_offset: int | Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    score: Score | None = None,
    content_bias: Tensor | None = None,
    position_bias: Tensor | None = None,
    row_scores: Table = None,
    value_map: Maps | None = None,
    edge_attr: Tensor | None = None,
    edge_key: Tensor | None = None,
    edge_value: Tensor | None = None,
    impl: str | None = None,
    need_weights: bool = False,
    need_label_mass: bool = False,
) -> ImplChoice:
    """Find which implementation :func:`~relgraph.relation_attention` chooses for these arguments, and why.

    This checks the arguments and prepares the labels as the call does, but computes no attention. If the labels hold no
    tensors, the arguments may be on the ``"meta"`` device; they then count as CPU tensors. If the kernels of
    ``"native"`` are not compiled yet, this compiles them, which takes 10 to 20 seconds. For tensors on a GPU it runs
    the self-check of ``"triton"`` if that has not run yet, but never for fake tensors
    (``torch._subclasses.FakeTensorMode``).

    Args:
        query: this and all further arguments as in :func:`~relgraph.relation_attention` (packed, ``[T, H, D]``).
        need_weights: as in :func:`~relgraph.relation_attention_with_aux`.
        need_label_mass: as in :func:`~relgraph.relation_attention_with_aux`.

    Returns:
        :class:`~relgraph.functional.ImplChoice`: ``impl``, ``reason``, ``refused`` and ``notes``.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: as the call.
        NotImplementedError: as the call.

    Example:
        >>> x = torch.empty(2, 8, 1024, 64, device="meta")
        >>> choice = rg.which_impl(x, x, x, rg.ClippedDistance(16)(1024), need_weights=True)
        >>> choice.impl, choice.reason
        ('dense', 'attention weights are asked for')
        >>> choice.refused["chunked"]
        "impl='chunked' never holds all attention weights; use impl='dense' for need_weights"
    """
    call, _ = check_call(
        query, key, value, labels, (key_table, value_table, query_table, bias_table), attn_mask, is_causal, q_offset,
        dropout_p, scale, enable_gqa, need_weights, need_label_mass, score, row_scores, value_map,
        (edge_attr, edge_key, edge_value), query_biases=(content_bias, position_bias),
    )  # fmt: skip
    taken = choose(call, impl)
    refused = {name: reason for name in IMPLEMENTATIONS if (reason := refusal(call, name)) is not None}
    reason = rule_for(call).when.format(size=size_in_words(call)) if impl is None else "asked for by name"
    return ImplChoice(taken, reason, refused, notes(call))
