"""The key, value, query and bias tables of one attention, for one labeling or a sum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from relgraph.arguments import check
from relgraph.arguments.brief import brief, shown
from relgraph.arguments.sharding import survives_reshard
from relgraph.labelers import Labeler
from relgraph.labels import Labels
from relgraph.nn.table import FEATURES, LabelTable, check_label_names, check_size, rows_of

KINDS = ("key", "value", "query", "bias")
"""The kinds of tables: a label's row is added to the key, the value, the query or, as a scalar, to the score."""

NumLabels = int | None | Sequence[int | None]
"""R, or one per part of a sum; None if banks compute all rows."""


class TableParts(nn.ModuleList):
    """The tables of one kind for a sum of labels, one per part; index it for a :class:`~relgraph.nn.LabelTable`."""

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Raise TypeError, because a sum has several tables."""
        raise TypeError(f"tables of a sum of labels must be called one by one: index a part, 0 to {len(self) - 1}")

    def __getattr__(self, name: str) -> Any:
        """Look up an attribute; for one that only a part has, the error says to index a part."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name.startswith("_") or not len(self) or not hasattr(self[0], name):
                raise
            raise AttributeError(f"{error}: index a part, 0 to {len(self) - 1}") from None


class RelationTables(nn.Module):
    """The tables of one attention; a call returns the table arguments of :func:`~relgraph.relation_attention`.

    Pass one object to several layers to tie their tables: its parameters appear once among ``parameters()``. A stack
    shares it among the copies of a layer, unless ``shared=False``. With FSDP2, shard a shared object once: call
    ``fully_shard(tables)`` before you shard the layers, or shard only the root. The attributes ``key``, ``value``,
    ``query`` and ``bias`` each hold a :class:`~relgraph.nn.LabelTable`, for a sum a list with one per part, or None if
    there is no such table. If ``tied``, ``value`` is None and the key tables serve for values too.

    Source: key and value tables as in Shaw, Uszkoreit, Vaswani 2018, eqs. 3-4; query tables as in He et al. 2021
    (DeBERTa) and Park et al. 2022 (GRPE); bias tables as in Raffel et al. 2020 (T5) and Ying et al. 2021 (Graphormer).

    Args:
        num_labels: R, or the labeler, whose number and names of labels the tables then take; for a sum of labels a
            tuple, one number per part. None for a part whose banks compute all rows.
        dim: D, the size of each head.
        heads: H, the number of query heads; needed only with ``per_head``.
        kinds: which tables there are, of ``"key"``, ``"value"``, ``"query"`` and ``"bias"``.
        per_head: whether each head has its own rows: True, False, or the kinds of tables that have rows per head.
        tied: one table serves as key and value table.
        names: the labels' names, if there is no labeler; for a sum one sequence per part.
        frozen: the label whose rows stay zero; for a sum one per part.
        banks: modules that compute rows, by kind; for a sum one mapping (or None) per part. Kinds without a bank have
            free rows.
        shared: whether all layers of a stack share these tables; if False, each layer gets its own.
        device: device of the rows.
        dtype: floating type of the rows.

    Raises:
        ValueError: unknown, missing or repeated kinds, tied tables without both kinds, ``per_head`` without ``heads``,
            options of a sum without one value per part, banks of other kinds, and the errors of
            :class:`~relgraph.nn.LabelTable`.

    Example:
        >>> tables = rg.RelationTables(5, 16, kinds=("key", "bias"))
        >>> {name: list(table.shape) for name, table in tables().items()}
        {'key_table': [5, 16], 'bias_table': [5]}
        >>> q = torch.randn(1, 2, 3, 16)
        >>> rg.relation_attention(q, q, q, rg.ClippedDistance(2)(3), **tables()).shape
        torch.Size([1, 2, 3, 16])
    """

    # a LabelTable, TableParts for a sum, or None: Any spares users an assertion at each use
    key: Any
    value: Any
    query: Any
    bias: Any

    def __init__(
        self,
        num_labels: NumLabels | Labeler,
        dim: int,
        heads: int | None = None,
        *,
        kinds: Sequence[str] = ("key", "value"),
        per_head: bool | Sequence[str] = False,
        tied: bool = False,
        names: Sequence[Any] | None = None,
        frozen: int | Sequence[int | None] | None = None,
        banks: Mapping[str, nn.Module] | Sequence[Mapping[str, nn.Module] | None] | None = None,
        shared: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        if isinstance(num_labels, Labeler):
            if names is not None:
                raise ValueError(f"names must be left out with a labeler, which has its own, got {shown(names)}")
            num_labels, names = num_labels.num_labels, num_labels.names
        self.num_labels = check_num_labels(num_labels)
        self.shared = check.boolean("shared", shared)
        self.dim = check.integer("dim", dim, minimum=1)
        self.kinds = check_kinds("kinds", kinds)
        self.tied = check.boolean("tied", tied)
        if tied and not {"key", "value"} <= set(self.kinds):
            raise ValueError(f"tied: tied tables must be of the kinds 'key' and 'value', got {list(self.kinds)}")
        self.per_head = self._check_per_head(per_head, heads)
        self.heads = heads if self.per_head else None
        sizes = self.num_labels if isinstance(self.num_labels, tuple) else (self.num_labels,)
        factory = check.parameter_place(device, dtype)
        made: dict[str, list[LabelTable]] = {kind: [] for kind in self._own_kinds()}
        self.has_banks = banks is not None
        options = (self._by_part(n, v) for n, v in (("names", names), ("frozen", frozen), ("banks", banks)))
        for size, name, freeze, bank in zip(sizes, *options, strict=True):
            bank = self._check_banks(bank)
            for kind, tables in made.items():
                width, row_heads = None if kind == "bias" else dim, heads if kind in self.per_head else None
                options = {"heads": row_heads, "names": name, "frozen": freeze, "bank": bank.get(kind)}
                tables.append(LabelTable(size, width, **options, **factory))
        of_parts = [tables.names for tables in next(iter(made.values()))]
        self.names = tuple(of_parts) if isinstance(self.num_labels, tuple) else of_parts[0]
        for kind in KINDS:
            tables = made.get(kind)
            is_sum = isinstance(self.num_labels, tuple)
            setattr(self, kind, None if tables is None else TableParts(tables) if is_sum else tables[0])

    def forward(self, features: Any = None) -> dict[str, Any]:
        """The tables as keyword arguments of :func:`~relgraph.relation_attention`.

        Args:
            features: the banks' input; for a sum a tuple, one entry per part (None for a part without a bank).

        Returns:
            A dict with an entry for each table that exists. ``key_table``, ``value_table`` and ``query_table`` are
            ``[R, D]`` or ``[H, R, D]``, ``bias_table`` is ``[R]`` or ``[H, R]``, with a batch axis if a bank gives one.
            For a sum each entry is a tuple of tensors.

        Example:
            >>> tables = rg.RelationTables((5, 3), 16)                              # of a sum of two parts
            >>> {name: [list(table.shape) for table in parts] for name, parts in tables().items()}
            {'key_table': [[5, 16], [3, 16]], 'value_table': [[5, 16], [3, 16]]}
        """
        given: Sequence[Any] = (None,)
        if features is not None or isinstance(self.num_labels, tuple):
            given = self._by_part(FEATURES, features)
            self._check_features(given)
        tables: dict[str, Any] = {}
        is_sum = isinstance(self.num_labels, tuple)
        for kind in self.kinds:
            if self.tied and kind == "value":
                continue
            of_kind: Any = self._modules[kind]
            rows = []
            for table, x in zip(of_kind if is_sum else (of_kind,), given, strict=True):
                row = rows_of(table, x)
                rows.append(row if type(self) is RelationTables else survives_reshard(self, row))
            tables[f"{kind}_table"] = tuple(rows) if is_sum else rows[0]
        if self.tied:
            tables["value_table"] = tables["key_table"]
        return tables

    def reset_parameters(self) -> None:
        """Initialize all free rows again; banks do not change."""
        for kind in self._own_kinds():
            for table in self._parts(kind):
                table.reset_parameters()

    def _fits(self, num_labels: int | tuple[int, ...]) -> bool:
        """Whether labels with ``num_labels`` can look up these tables; one whose own number is None takes every one."""
        if isinstance(self.num_labels, tuple) != isinstance(num_labels, tuple):
            return False
        mine, theirs = (n if isinstance(n, tuple) else (n,) for n in (self.num_labels, num_labels))
        # not ``in``: one of them may be symbolic for dynamo
        return len(mine) == len(theirs) and all(m is None or m == t for m, t in zip(mine, theirs, strict=False))

    def _check_names(self, name: str, labels: Labels) -> None:
        """Raise ValueError if labels, called ``name``, come from a labeler with other names than these tables."""
        theirs, mine = labels.names, self.names
        if theirs is None or mine is None or theirs is mine or theirs == mine:
            return
        pairs = zip(theirs, mine, strict=True) if isinstance(self.num_labels, tuple) else ((theirs, mine),)
        if any(their is not None and my is not None and their != my for their, my in pairs):
            raise ValueError(
                f"{name} must be those of a labeler with the names of the tables, {brief(mine)}, got {brief(theirs)}"
            )

    def _own_kinds(self) -> tuple[str, ...]:
        """All kinds, but not the values if they are tied to the keys."""
        return tuple(kind for kind in self.kinds if not (self.tied and kind == "value"))

    def _parts(self, kind: str) -> list[LabelTable]:
        module: Any = getattr(self, kind)
        return [module] if isinstance(module, LabelTable) else list(module)

    def _check_features(self, features: Sequence[Any]) -> None:
        for part, given in enumerate(features):
            banks = [self._parts(kind)[part].bank for kind in self._own_kinds()]
            if given is not None and not any(bank is not None for bank in banks):
                where = f" for part {part}" if isinstance(self.num_labels, tuple) else ""
                raise ValueError(f"{FEATURES} must be None{where}, as no bank reads them, got {type(given).__name__}")

    def _by_part(self, name: str, value: Any) -> Sequence[Any]:
        """``value`` as one entry per part; if the labels are not a sum, ``value`` is the only entry."""
        if not isinstance(self.num_labels, tuple):
            return (value,)
        parts = len(self.num_labels)
        if value is None:
            return (None,) * parts
        if not isinstance(value, (tuple, list)) or len(value) != parts:
            got = f"{len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__
            raise ValueError(f"{name} must be a tuple with one entry for each of the {parts} parts, got {got}")
        return value

    def _check_per_head(self, per_head: Any, heads: int | None) -> tuple[str, ...]:
        if heads is not None:
            check.integer("heads", heads, minimum=1)
        chosen = self.kinds if per_head is True else () if per_head is False else check_kinds("per_head", per_head)
        if not set(chosen) <= set(self.kinds):
            raise ValueError(f"per_head must name some of the kinds {list(self.kinds)}, got {list(chosen)}")
        if chosen and heads is None:
            raise ValueError("heads must be given with per_head, got None")
        return chosen

    def _check_banks(self, banks: Any) -> Mapping[str, nn.Module]:
        if banks is None:
            return {}
        if not isinstance(banks, Mapping):
            raise TypeError(f"banks must be a mapping from kinds to Modules, got {type(banks).__name__}")
        if not set(banks) <= set(self._own_kinds()):
            raise ValueError(f"banks must be for some of the kinds {list(self._own_kinds())}, got {list(banks)}")
        return banks

    def extra_repr(self) -> str:
        """The arguments that the submodules do not show."""
        return f"num_labels={self.num_labels}{self._options()}"

    def _options(self, *, per_head: bool = False) -> str:
        """``kinds``, ``per_head`` and ``tied`` unless they are defaults; ``per_head`` is that of a layer."""
        given = "" if self.kinds == ("key", "value") else f", kinds={self.kinds}"
        heads = self.per_head == self.kinds or self.per_head or False
        given += "" if heads == per_head else f", per_head={heads}"
        return given + (", tied=True" if self.tied else "")


def check_num_labels(num_labels: Any) -> int | tuple[int | None, ...] | None:
    """Return a checked ``num_labels``, a list as a tuple."""
    parts = num_labels if isinstance(num_labels, (tuple, list)) else (num_labels,)
    if not parts:
        raise ValueError("num_labels must hold one number per part of the sum, got none")
    for size in parts:
        check_size(size)
    return tuple(parts) if isinstance(num_labels, (tuple, list)) else num_labels


def check_kinds(name: str, kinds: Any) -> tuple[str, ...]:
    """Return the kinds in the order of :data:`KINDS`; raise unless they are different and at least one."""
    if isinstance(kinds, str) or not isinstance(kinds, (tuple, list, set, frozenset)):
        raise TypeError(f"{name} must be a sequence of kinds of tables, got {shown(kinds)}")
    for kind in kinds:
        check.choice(name, kind, KINDS)
    if not kinds or len(set(kinds)) != len(kinds):
        raise ValueError(f"{name} must hold different kinds of {list(KINDS)}, at least one, got {list(kinds)}")
    return tuple(kind for kind in KINDS if kind in kinds)


def check_without_labels(tables: Any, said: bool, *others: str) -> None:
    """Raise unless it is ``said`` what the labels are, or ``tables`` say so, or say by ``()`` that there are none."""
    if isinstance(tables, RelationTables) or (isinstance(tables, (tuple, list)) and not tables):
        return
    if check_kinds("tables", tables) and not said:
        raise ValueError(
            f"{', '.join(('labeler', 'num_labels', *others))} or tables (as RelationTables) must be given, or "
            "tables=() for attention without labels, got none of them"
        )


def check_given(tables: RelationTables, num_labels: Any, num_heads: int, head_dim: int) -> RelationTables:
    """Return tables that a layer was given; raise ValueError unless they fit it."""
    if num_labels is not None and check_num_labels(num_labels) != tables.num_labels:
        raise ValueError(f"num_labels must be that of the tables, {tables.num_labels}, got {num_labels}")
    if tables.dim != head_dim or tables.heads not in (None, num_heads):
        raise ValueError(
            f"tables must be for {num_heads} heads of {head_dim}, "
            f"got {tables.heads or 'any number of'} heads of {tables.dim}"
        )
    return tables
