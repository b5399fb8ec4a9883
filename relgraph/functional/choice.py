"""Which implementation a call takes and why the others cannot take it, without computing attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack, final

from torch import Tensor

from relgraph.call import LabelsLike, Options, Table, check_call
from relgraph.call.operands import check_options, takes_options
from relgraph.impl import IMPLEMENTATIONS
from relgraph.impl.rule import choose, refusal, rule_for, size_in_words


@final
@dataclass(frozen=True, repr=False)
class ImplChoice:
    """The answer of :func:`~relgraph.which_impl`; it prints as a few lines of text.

    Args:
        impl: the implementation that answers the call.
        reason: why it was chosen: the row of the rule that applies, or that you named it.
        refused: each implementation that does not support the call, with the reason and an alternative.

    Example:
        >>> x = torch.randn(1, 8, 5, 16)
        >>> choice = rg.which_impl(x, x, x, rg.ClippedDistance(2)(5), need_weights=True)
        >>> choice.impl, "chunked" in choice.refused, "reference" in choice.refused
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


@takes_options()
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
    need_weights: bool = False,
    need_label_mass: bool = False,
    **options: Unpack[Options],
) -> ImplChoice:
    """Find which implementation :func:`~relgraph.relation_attention` chooses for these arguments, and why.

    This checks the arguments and prepares the labels as the call does, but computes no attention. If the labels hold no
    tensors, the arguments may be on the ``"meta"`` device; they then count as CPU tensors. It compiles nothing.

    Args:
        query: this and all further arguments as in :func:`~relgraph.relation_attention` (packed, ``[T, H, D]``).
        need_weights: as in :func:`~relgraph.relation_attention_with_aux`.
        need_label_mass: as in :func:`~relgraph.relation_attention_with_aux`.

    Returns:
        :class:`~relgraph.functional.ImplChoice`: ``impl``, ``reason`` and ``refused``.

    Raises:
        NotImplementedError: as the call.

    Example:
        >>> x = torch.empty(2, 8, 1024, 64, device="meta")
        >>> choice = rg.which_impl(x, x, x, rg.ClippedDistance(16)(1024), need_weights=True)
        >>> choice.impl, choice.reason
        ('dense', 'attention weights are asked for')
        >>> choice.refused["chunked"]
        "impl='chunked' never holds all attention weights; use impl='dense' for need_weights"
    """
    check_options("which_impl", options)
    given = {"query": query, "key": key, "value": value, "labels": labels, **options}
    given |= {"key_table": key_table, "value_table": value_table, "query_table": query_table, "bias_table": bias_table}
    given |= {"need_weights": need_weights, "need_label_mass": need_label_mass}
    return choice_of(given)


def choice_of(given: dict[str, Any]) -> ImplChoice:
    """The answer of :func:`~relgraph.which_impl` for arguments by name; a missing one has its default."""
    call, impl = check_call(given), given.get("impl")
    taken = choose(call, impl)
    # before refusals, which compile kernels, by which the rule would then choose otherwise
    why = rule_for(call).when.format(size=size_in_words(call)) if impl is None else "asked for by name"
    refused = {name: reason for name in IMPLEMENTATIONS if (reason := refusal(call, name)) is not None}
    return ImplChoice(taken, why, refused)
