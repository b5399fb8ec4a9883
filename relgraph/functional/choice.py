"""Which implementation a call takes, why, and why the others cannot take it: told without computing attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from relgraph.arguments import check
from relgraph.functional.check import LabelsLike, Table, check_call
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.call import Call
from relgraph.impl.rule import choose, refusal, rule_for, scores


@final
@dataclass(frozen=True, repr=False)
class ImplChoice:
    """What :func:`~relgraph.which_impl` tells; printed, a few lines of text.

    Args:
        impl: the implementation that answers the call.
        reason: why it is that one: the row of the rule that fits, or that it was asked for.
        refused: for every implementation that cannot answer the call, why not and what can; the others are not in it.

    Example:
        >>> x = torch.randn(1, 8, 5, 16)
        >>> choice = rg.which_impl(x, x, x, rg.ClippedDistance(2)(5))
        >>> choice.impl, "edges" in choice.refused, "chunked" in choice.refused
        ('dense', True, False)
    """

    impl: str
    reason: str
    refused: dict[str, str]

    def __repr__(self) -> str:
        able = [name for name in IMPLEMENTATIONS if name != self.impl and name not in self.refused]
        lines = [f"impl={self.impl!r}: {self.reason}"]
        lines += [f"able too: {', '.join(able)}"] if able else []
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
    impl: str | None = None,
    need_weights: bool = False,
    need_label_mass: bool = False,
) -> ImplChoice:
    """Which implementation :func:`~relgraph.relation_attention` takes for these arguments, and why.

    The arguments are checked and the labels are lowered as in the call itself; no attention is computed, so shapes
    on the ``"meta"`` device will do where the labels hold no tensors. The rule is the one in the docs, and the code
    that tells it is the code that follows it.

    Args:
        query: this and all further arguments as in :func:`~relgraph.relation_attention` (packed, ``[T, H, D]``).
        need_weights: whether attention weights are asked for too (:func:`~relgraph.relation_attention_with_aux`).
        need_label_mass: whether label mass is.

    Returns:
        :class:`~relgraph.ImplChoice`: ``impl``, ``reason`` and ``refused``.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: what the call itself would raise.
        NotImplementedError: likewise: ``impl`` cannot answer this call, or torch.func is at work.

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
        check.boolean("need_label_mass", need_label_mass),
    )  # fmt: skip
    taken = choose(call, impl)
    refused = {name: reason for name in IMPLEMENTATIONS if (reason := refusal(call, name)) is not None}
    return ImplChoice(taken, _reason(call) if impl is None else "asked for by name", refused)


def _reason(call: Call) -> str:
    return rule_for(call).when.format(scores=scores(call))
