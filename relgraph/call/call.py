"""A checked call of attention, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from relgraph.arguments.brief import brief_fields
from relgraph.call.operands import OPERANDS, Operand
from relgraph.plan import LabelPlan, offset_of_rows
from relgraph.score import DOT, Compatibility

if TYPE_CHECKING:
    from relgraph.impl.draw import Hashes


class Tables(NamedTuple):
    """The learned vectors of one part of the labels; each may be missing.

    A table is ``[R, D]``, ``[H, R, D]`` or, with a batch axis, ``[B, 1 or H, R, D]``; biases have no axis D. ``rows``
    ``[B, H, N_q, R]`` are scores for each query and label, given in place of a key table.
    """

    key: Tensor | None = None
    value: Tensor | None = None
    query: Tensor | None = None
    bias: Tensor | None = None
    rows: Tensor | None = None

    @property
    def batched(self) -> tuple[str, ...]:
        """The kinds of tables that have a batch axis."""
        with_axis = {"key": 4, "value": 4, "query": 4, "bias": 3}
        found: list[str] = []
        for kind, dims in with_axis.items():
            table = getattr(self, kind)
            if table is not None and table.dim() == dims:
                found.append(kind)
        return tuple(found)


class EdgeVectors(NamedTuple):
    """A vector per listed pair, and the maps that carry it into score and value.

    Attributes:
        attr: ``[P, F]``, in the order of the listed pairs.
        key: W_k, ``[D, F]`` or ``[H, D, F]``, or None.
        value: W_v, ``[D_v, F]`` or ``[H, D_v, F]``, or None.
    """

    attr: Tensor
    key: Tensor | None
    value: Tensor | None


class ValueMap(NamedTuple):
    """A linear map of the value for each label: W[r] = Σ_k coefficients[r, k] · bases[k].

    coefficients ``[R, K]`` or ``[H, R, K]``; bases ``[K, D_v, D_v]`` or ``[H, K, D_v, D_v]``. No coefficients: K = R, a
    free map for each label.
    """

    coefficients: Tensor | None
    bases: Tensor


class Gates(NamedTuple):
    """A vector for each label by which it multiplies keys or values; a pair without a label has ones.

    key ``[R, D]`` or ``[H, R, D]``; value ``[R, D_v]`` or ``[H, R, D_v]``; each may be missing.
    """

    key: Tensor | None
    value: Tensor | None


class Drawn(NamedTuple):
    """Which part of a larger call's dropout mask a call draws; by default it draws its own mask.

    Attributes:
        seed: the seed of the larger call, a number; None to draw one.
        batch: which batch row of the larger call is the first one here.
        head: which query head of the larger call is the first one here.
    """

    seed: Tensor | None = None
    batch: int = 0
    head: int = 0


@dataclass(frozen=True, eq=False)
class Call:
    """One checked call; every implementation gives the same numbers for it.

    The tensors are those of :data:`~relgraph.call.operands.OPERANDS`, with a batch axis: a packed batch has B = 1 and
    its borders in the plan. Biases of queries are folded into query and tables. ``mask`` is None or has four axes; bool
    (True attends) or added to the scores. ``score`` says how scores are computed.
    ``keep`` is a given dropout mask ``[B, H, N_q, N_k]`` instead of a drawn one. ``dropout_origin`` has the batch row,
    head, query and key that the first ones here are in a larger problem, whose dropout this part draws with the same
    seed. ``dropout_seed`` is that seed, a number; None draws one, or uses torch's dropout in an implementation without
    kernels. ``drawn`` holds the hashes made from both, for a block of a call.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    plan: LabelPlan
    tables: tuple[Tables, ...]
    scale: float
    mask: Tensor | None = None
    is_causal: bool = False
    q_offset: int | Tensor = 0
    dropout_p: float = 0.0
    keep: Tensor | None = None
    need_weights: bool = False
    need_mass: bool = False
    score: Compatibility = DOT
    value_map: ValueMap | None = None
    edge: EdgeVectors | None = None
    dropout_origin: tuple[int, int, int, int] = (0, 0, 0, 0)
    dropout_seed: Tensor | None = None
    drawn: Hashes | None = None
    gates: Gates | None = None

    def map(self, change: Callable[[Operand, Tensor], Tensor | None]) -> Self:
        """The same call with ``change(operand, tensor)`` in the place of each tensor of its operands."""
        new: dict[str, Any] = {}
        for field, rows in _FIELDS.items():
            held = getattr(self, field)
            if held is None:
                continue
            if isinstance(rows, Operand):
                new[field] = change(rows, held)
            elif field == "tables":
                new[field] = tuple(_mapped(rows, part, change) for part in held)
            else:
                new[field] = _mapped(rows, held, change)
        return replace(self, **new)

    def tensors(self) -> list[Tensor]:
        """Every tensor that may need a gradient: those of the operands, in their order, then those of the score."""
        found: list[Tensor] = []
        self.map(lambda _, x: found.append(x))
        return found + self.score.tensors()

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same call with other tensors, in the order of :meth:`tensors`."""
        rest = iter(tensors)
        made = self.map(lambda *_: next(rest))
        return replace(made, score=self.score.with_tensors(list(rest)))

    def cut(self, batch: range, rows: range, keys: range, plan: LabelPlan, skipped: int, graph: int | None) -> Self:
        """The call of some query rows and keys, whose plan is given; its tensors are views.

        Args:
            batch: batch rows.
            rows: query rows, of one graph when packed.
            keys: keys, of that graph.
            plan: the labels of these.
            skipped: how many query rows of the batch row or graph come before.
            graph: the graph when packed, else None.
        """
        taken = {"B": batch, "N_q": rows, "N_k": keys}
        hashes = self.drawn
        if hashes is not None:
            at, queries, seen = (slice(r.start, r.stop) for r in (batch, rows, keys))
            hashes = hashes._replace(rows=hashes.rows[at, :, queries], keys=hashes.keys[:, seen])
        return replace(
            self.map(lambda operand, x: operand.cut(x, taken)),
            plan=plan,
            keep=None if self.keep is None else _MASK.cut(self.keep, taken),
            drawn=hashes,
            q_offset=offset_of_rows(self.q_offset, batch, graph, skipped),
        )


def _mapped(rows: tuple[Operand, ...], held: Any, change: Callable[[Operand, Tensor], Any]) -> Any:
    """A record of tensors with each of them changed."""
    return type(held)(*(None if x is None else change(row, x) for row, x in zip(rows, held, strict=True)))


def _fields() -> Iterator[tuple[str, Any]]:
    """Each field of a call that holds tensors, and its operand, or the operands of its fields."""
    names = dict.fromkeys(operand.place[0] for operand in OPERANDS if operand.place[0] in Call.__dataclass_fields__)
    for name in names:
        rows = tuple(operand for operand in OPERANDS if operand.place[0] == name)
        yield name, rows[0] if len(rows[0].place) == 1 else rows


_FIELDS: dict[str, Any] = dict(_fields())
_MASK = _FIELDS["mask"]


class Answer(NamedTuple):
    """The result of an implementation.

    output ``[B, H, N_q, D_v]``; lse ``[B, H, N_q]`` (-inf on a row that sees nothing); mass, one ``[B, H, N_q, R]`` per
    part, on request; weights ``[B, H, N_q, N_k]``, on request. All in the accumulation dtype.
    """

    output: Tensor
    lse: Tensor
    mass: tuple[Tensor, ...] | None = None
    weights: Tensor | None = None


class AttentionAux(NamedTuple):
    """The extra results of :func:`~relgraph.relation_attention_with_aux`; a result that was not asked for is None.

    α_ij is the weight that query i gives to key j: the softmax of the scores over j, before dropout.

    Args:
        weights: α, ``[B, H, N_q, N_k]``; packed ``[H, T_q, T_k]``.
        label_mass: α summed over the keys with each label, ``[B, H, N_q, R]``; packed ``[T_q, H, R]``. For a sum of
            labels, a tuple of one tensor per part. A row sums to 1 minus the attention on pairs without a label. Layers
            and :func:`~relgraph.record_attention` give ``[H, T_q, R]`` when packed, ``[H, N_q, R]`` without a batch.
        lse: log Σ_j exp(e_ij) of each row of scores, ``[B, H, N_q]``; packed ``[T_q, H]``. A sink is one more score.
            It is -inf on a row that sees nothing, without a sink; it is NaN, like the output, on a row with a score of
            NaN or +inf. A score of -inf hides its pair, as a mask does.

    Source: Dao 2023 (FlashAttention-2) for ``lse``.

    Example:
        >>> x, labels = torch.randn(1, 2, 4, 8), rg.ClippedDistance(1)(4)
        >>> _, aux = rg.relation_attention_with_aux(x, x, x, labels, need_weights=True, need_label_mass=True)
        >>> aux.weights.shape, aux.label_mass.shape, aux.lse
        (torch.Size([1, 2, 4, 4]), torch.Size([1, 2, 4, 3]), None)
    """

    weights: Tensor | None = None
    label_mass: Any = None  # a Tensor, or a tuple of them for a sum
    lse: Tensor | None = None

    def __repr__(self) -> str:
        return brief_fields(self, *self._fields)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the half types, else the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
