"""All the tables of one attention: for keys, values, queries and bias, for one labeling or a sum of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.sharding import kept
from relgraph.nn.table import LabelTable, check_label_names, check_size

KINDS = ("key", "value", "query", "bias")
"""Where a label's row enters: beside the key, the value or the query, or as a scalar in the score."""

NumLabels = int | None | Sequence[int | None]
"""R, or one a part when the labels are a sum; None where a bank computes the rows."""


class RelationTables(nn.Module):
    """The tables of one attention, called to give the arguments of :func:`~relgraph.relation_attention`.

    Handed to several layers, one object ties their tables: its parameters appear once among ``parameters()``. FSDP2
    shards such an object once, ``fully_shard(tables)``, before the layers, or with the root alone. The attributes
    ``key``, ``value``, ``query`` and ``bias`` hold a :class:`~relgraph.LabelTable` each, for a sum a list with one a
    part, or None where there is no such table; ``value`` is None when ``tied``, as the key tables serve.

    Source: key and value tables as in Shaw, Uszkoreit, Vaswani 2018, eqs. 3-4; query tables as in He et al. 2021
    (DeBERTa) and Park et al. 2022 (GRPE); bias tables as in Raffel et al. 2020 (T5) and Ying et al. 2021 (Graphormer).

    Args:
        num_labels: R; for a sum of labels a tuple, one number a part. None for a part whose banks compute all rows.
        dim: D, the size of a head.
        heads: H, the number of query heads; needed with ``per_head`` only.
        kinds: which tables there are, of ``"key"``, ``"value"``, ``"query"`` and ``"bias"``.
        per_head: whether each head has rows of its own: True, False, or the kinds for which it has.
        tied: one table serves as key and value table.
        names: the labels' names; for a sum one sequence a part.
        frozen: the label whose rows stay zero; for a sum one a part.
        banks: modules that compute rows, by kind; for a sum one mapping (or None) a part. Kinds without one have free
            rows.
        device: where the rows live.
        dtype: floating type of the rows.

    Raises:
        TypeError: an argument of the wrong kind, such as ``kinds="key"`` for ``("key",)``.
        ValueError: unknown, missing or repeated kinds, tied tables without both kinds, ``per_head`` without ``heads``,
            options that do not name one value a part, banks of other kinds, and what :class:`~relgraph.LabelTable`
            refuses.

    Example:
        >>> tables = rg.RelationTables(5, 16, kinds=("key", "bias"))
        >>> {name: list(table.shape) for name, table in tables().items()}
        {'key_table': [5, 16], 'bias_table': [5]}
        >>> q = torch.randn(1, 2, 3, 16)
        >>> rg.relation_attention(q, q, q, rg.ClippedDistance(2)(3), **tables()).shape
        torch.Size([1, 2, 3, 16])
    """

    key: LabelTable | nn.ModuleList | None
    value: LabelTable | nn.ModuleList | None
    query: LabelTable | nn.ModuleList | None
    bias: LabelTable | nn.ModuleList | None

    def __init__(
        self,
        num_labels: NumLabels,
        dim: int,
        heads: int | None = None,
        *,
        kinds: Sequence[str] = ("key", "value"),
        per_head: bool | Sequence[str] = False,
        tied: bool = False,
        names: Sequence[Any] | None = None,
        frozen: int | Sequence[int | None] | None = None,
        banks: Mapping[str, nn.Module] | Sequence[Mapping[str, nn.Module] | None] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        self.num_labels = check_num_labels(num_labels)
        self.dim = check.integer("dim", dim, minimum=1)
        self.kinds = check_kinds("kinds", kinds)
        self.tied = check_tied("tied", tied, self.kinds)
        self.per_head = self._check_per_head(per_head, heads)
        self.heads = heads if self.per_head else None
        sizes = self.num_labels if isinstance(self.num_labels, tuple) else (self.num_labels,)
        factory = check.parameter_place(device, dtype)
        made: dict[str, list[LabelTable]] = {kind: [] for kind in self._own_kinds()}
        options = (self._by_part(n, v) for n, v in (("names", names), ("frozen", frozen), ("banks", banks)))
        for size, name, freeze, bank in zip(sizes, *options, strict=True):
            bank = self._check_banks(bank)
            for kind, tables in made.items():
                width, own = None if kind == "bias" else dim, heads if kind in self.per_head else None
                table = LabelTable(size, width, heads=own, names=name, frozen=freeze, bank=bank.get(kind), **factory)
                tables.append(table)
        for kind in KINDS:
            tables = made.get(kind)
            is_sum = isinstance(self.num_labels, tuple)
            setattr(self, kind, None if tables is None else nn.ModuleList(tables) if is_sum else tables[0])

    def forward(self, features: Any = None) -> dict[str, Any]:
        """The tables by the names that :func:`~relgraph.relation_attention` gives them.

        Args:
            features: what the banks read; for a sum a tuple, one entry a part (None for a part without a bank).

        Returns:
            A dict of ``key_table`` and ``query_table`` ``[R, D]`` or ``[H, R, D]``, ``value_table`` likewise, and
            ``bias_table`` ``[R]`` or ``[H, R]``, as far as there are such tables; for a sum each is a tuple of tensors.

        Raises:
            TypeError: a bank that gives no tensor.
            ValueError: features without banks, banks without features, or not one entry a part; a bank that gives
                another shape.

        Example:
            >>> tables = rg.RelationTables((5, 3), 16)                              # of a sum of two parts
            >>> {name: [list(table.shape) for table in parts] for name, parts in tables().items()}
            {'key_table': [[5, 16], [3, 16]], 'value_table': [[5, 16], [3, 16]]}
        """
        given = self._by_part("features", features)
        self._check_features(given)
        tables: dict[str, Any] = {}
        for kind in self._own_kinds():
            rows = tuple(t(None if t.bank is None else x) for t, x in zip(self._parts(kind), given, strict=True))
            rows = tuple(kept(self, table) for table in rows)
            tables[f"{kind}_table"] = rows if isinstance(self.num_labels, tuple) else rows[0]
        if self.tied:
            tables["value_table"] = tables["key_table"]
        return tables

    def reset_parameters(self) -> None:
        """Draw all free rows afresh; banks are left as they are."""
        for kind in self._own_kinds():
            for table in self._parts(kind):
                table.reset_parameters()

    def fits(self, num_labels: int | tuple[int, ...]) -> bool:
        """Whether labels with ``num_labels`` can look up these tables.

        Args:
            num_labels: R of the labels; for a sum a tuple, one number a part.

        Returns:
            True where the numbers agree; a table without a number of its own takes every number.

        Raises:
            TypeError: a number that is no int.
            ValueError: a number below 0, or a tuple without any.

        Example:
            >>> rg.RelationTables(5, 16).fits(5), rg.RelationTables((5, 3), 16).fits(5)
            (True, False)
        """
        check_num_labels(num_labels)
        if not isinstance(self.num_labels, tuple) or not isinstance(num_labels, tuple):
            return not isinstance(num_labels, tuple) and _fits(self.num_labels, num_labels)
        pairs = zip(self.num_labels, num_labels, strict=False)
        return len(self.num_labels) == len(num_labels) and all(_fits(mine, theirs) for mine, theirs in pairs)

    def _own_kinds(self) -> tuple[str, ...]:
        """The kinds with rows of their own: all, less the values that are tied to the keys."""
        return tuple(kind for kind in self.kinds if not (self.tied and kind == "value"))

    def _parts(self, kind: str) -> list[LabelTable]:
        module: Any = getattr(self, kind)
        return [module] if isinstance(module, LabelTable) else list(module)

    def _check_features(self, features: Sequence[Any]) -> None:
        for part, given in enumerate(features):
            banks = [self._parts(kind)[part].bank for kind in self._own_kinds()]
            if given is not None and not any(bank is not None for bank in banks):
                where = f" for part {part}" if isinstance(self.num_labels, tuple) else ""
                raise ValueError(f"features must be None{where}, as no bank reads them, got {type(given).__name__}")

    def _by_part(self, name: str, value: Any) -> Sequence[Any]:
        """One entry a part, of an option that is given as one entry when the labels are no sum."""
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
        """What the tables below do not show."""
        return f"num_labels={self.num_labels}, {self._options('kinds', 'tied')}"

    def _options(self, kinds: str, tied: str) -> str:
        """Which tables there are and who shares them, as the arguments of a layer that calls them so."""
        per_head = self.per_head == self.kinds or self.per_head or False
        return f"{kinds}={self.kinds}, per_head={per_head}{f', {tied}=True' if self.tied else ''}"


def check_num_labels(num_labels: Any) -> int | tuple[int | None, ...] | None:
    """R, or of a sum one number a part as a tuple; None where a bank computes the rows."""
    parts = num_labels if isinstance(num_labels, (tuple, list)) else (num_labels,)
    if not parts:
        raise ValueError("num_labels must hold one number a part of the sum, got none")
    for size in parts:
        check_size(size)
    return tuple(parts) if isinstance(num_labels, (tuple, list)) else num_labels


def _fits(mine: NumLabels, theirs: int) -> bool:
    return mine is None or mine == theirs  # not ``in``: dynamo may keep the one open and know the other


def check_kinds(name: str, kinds: Any) -> tuple[str, ...]:
    """Different kinds of tables, at least one, in the order of :data:`KINDS`."""
    if isinstance(kinds, str) or not isinstance(kinds, (tuple, list, set, frozenset)):
        raise TypeError(f"{name} must be a sequence of kinds of tables, got {shown(kinds)}")
    for kind in kinds:
        check.choice(name, kind, KINDS)
    if not kinds or len(set(kinds)) != len(kinds):
        raise ValueError(f"{name} must hold different kinds of {list(KINDS)}, at least one, got {list(kinds)}")
    return tuple(kind for kind in KINDS if kind in kinds)


def check_tied(name: str, tied: Any, kinds: tuple[str, ...]) -> bool:
    """Whether one table serves as key and value table, which then are both among the kinds."""
    if check.boolean(name, tied) and not {"key", "value"} <= set(kinds):
        raise ValueError(f"{name}: tied tables must be of the kinds 'key' and 'value', got {list(kinds)}")
    return tied
