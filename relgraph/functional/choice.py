"""Which implementation a call takes and why the others cannot take it, without computing attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from relgraph.arguments import check
from relgraph.functional.check import LabelsLike, Maps, Table, check_call
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.rule import choose, notes, refusal, rule_for, size_in_words
from relgraph.score import Score


@final
@dataclass(frozen=True, repr=False)
class ImplChoice:
    """What :func:`~relgraph.which_impl` returns; it prints as a few lines of text.

    Args:
        impl: the implementation that answers the call.
        reason: why: the row of the rule that fits, or that you asked for it.
        refused: the implementations that cannot answer the call; each says why not and what can.
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
    """Which implementation :func:`~relgraph.relation_attention` takes for these arguments, and why.

    Checks the arguments and lowers the labels as the call does, and computes no attention: tensors on the ``"meta"``
    device will do if the labels hold no tensors, and are taken for tensors of a CPU. Compiles the kernels of
    ``"native"``, 10 to 20 seconds, where that was not done before. For tensors on a GPU it makes the self-check of
    ``"triton"`` where that was not done before; never for fake tensors (``torch._subclasses.FakeTensorMode``).

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
        dropout_p, scale, enable_gqa, check.boolean("need_weights", need_weights),
        check.boolean("need_label_mass", need_label_mass), score, row_scores, value_map,
        (edge_attr, edge_key, edge_value), query_biases=(content_bias, position_bias),
    )  # fmt: skip
    taken = choose(call, impl)
    refused = {name: reason for name in IMPLEMENTATIONS if (reason := refusal(call, name)) is not None}
    reason = rule_for(call).when.format(size=size_in_words(call)) if impl is None else "asked for by name"
    return ImplChoice(taken, reason, refused, notes(call))
