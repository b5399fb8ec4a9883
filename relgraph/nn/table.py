"""A table of learned rows: one vector or one scalar per label, free or computed by a bank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.arguments.sharding import check_gathered, survives_reshard
from relgraph.labelers import Labeler
from relgraph.labels import Labels
from relgraph.labels.describe import check_names

_HOOKS_OF_ALL = [
    x for name, x in vars(nn.modules.module).items() if name.startswith("_global_") and isinstance(x, dict)
]
"""The hooks that torch calls for all modules."""

FEATURES = "features (bank_features of a layer)"
"""What errors call the input of a bank."""


class LabelTable(nn.Module):
    """One table: label r adds row r, a vector or a scalar.

    Free rows are a Parameter ``rows``. Vectors start as torch's embeddings, scaled to the head size: normal with
    standard deviation 1/√D. Scalars (``dim=None``, a bias table) start at zero. With a ``bank`` there is no such
    Parameter: a module computes the rows from features of the labels in a batch, so a label can be a whole path or a
    vector.

    ``state_dict`` holds the names of the labels (as bytes in a tensor), so that a checkpoint cannot be loaded with its
    labels in another order. relgraph's layers raise before loading anything from a state with other names; for your own
    model around such layers see :func:`~relgraph.nn.check_label_names`.

    Source: rows as a^K and a^V of Shaw, Uszkoreit, Vaswani 2018, section 3.2.

    Args:
        num_labels: R, the number of labels. None with a bank, when every batch has its own labels.
        dim: D, the size of each row; None for a bias table, whose rows are scalars.
        heads: H for separate rows per head; None for rows that all heads share.
        names: the name of each label, R different strings.
        frozen: a label whose row is zero and stays zero: it gets no gradient, and loading does not change it.
        bank: a module that computes rows from features: ``[R', D]`` (``[R']`` for a bias table), with heads
            ``[H, R', D]``; R' is R if that is given. It may compute rows for each sample of a batch, ``[B, 1, R', D]``,
            with heads ``[B, H, R', D]`` (``[B, 1 or H, R']`` for a bias table).
        device: device of the rows.
        dtype: floating type of the rows.

    Raises:
        ValueError: no ``num_labels`` and no bank, ``num_labels`` below 0, ``dim`` or ``heads`` below 1, rows of more
            than 2³¹ elements, names that are not R different strings, a frozen label outside ``[0, R)`` or with a bank,
            a ``device`` that does not exist, a ``dtype`` that parameters cannot have.

    Example:
        >>> table = rg.nn.LabelTable(3, 4, names=("left", "self", "right"), frozen=1)
        >>> table().shape, table()[1].tolist()
        (torch.Size([3, 4]), [0.0, 0.0, 0.0, 0.0])
        >>> paths = rg.nn.LabelTable(None, 4, bank=torch.nn.Linear(7, 4))
        >>> paths(torch.randn(5, 7)).shape
        torch.Size([5, 4])
    """

    rows: nn.Parameter | None
    bank: nn.Module | None

    by_heads = False  # whether rg.distributed.HeadParallel made the rows a DTensor

    def __init__(
        self,
        num_labels: int | None,
        dim: int | None,
        *,
        heads: int | None = None,
        names: Sequence[str] | None = None,
        frozen: int | None = None,
        bank: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(check_label_names)
        if bank is not None and not isinstance(bank, nn.Module):
            raise TypeError(f"bank must be a Module, got {type(bank).__name__}")
        if num_labels is None and bank is None:
            raise ValueError("num_labels must be given for a table without a bank, got None")
        check_size(num_labels)
        for name, value in (("dim", dim), ("heads", heads)):
            if value is not None:
                check.integer(name, value, minimum=1)
        factory = check.parameter_place(device, dtype)
        self.num_labels, self.dim, self.heads = num_labels, dim, heads
        self.names = check_names("names", names, num_labels)
        self.frozen = frozen
        if frozen is not None:
            if bank is not None or num_labels is None:
                raise ValueError(f"frozen must be None for a table with a bank, which has no rows, got {frozen!r}")
            check.integer("frozen", frozen, minimum=0, maximum=num_labels - 1)
        self.bank = bank
        rows = None
        if bank is None:
            assert num_labels is not None
            check.parameter_size(num_labels=num_labels, dim=dim or 1, heads=heads or 1)
            shape = [size for size in (heads, num_labels, dim) if size is not None]
            rows = nn.Parameter(torch.empty(shape, **factory))  # [R, D], [H, R, D] or, of scalars, [R], [H, R]
        self.register_parameter("rows", rows)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize free rows again; a bank does not change."""
        if self.rows is None:
            return
        if self.dim is None:
            nn.init.zeros_(self.rows)
        else:
            nn.init.normal_(self.rows, std=self.dim**-0.5)
        self._clear_frozen()

    def forward(self, features: Any = None) -> Tensor:
        """The rows of all labels.

        Args:
            features: the bank's input, commonly ``[R', F]``, one row per label in the batch. None for free rows.

        Returns:
            ``[R, D]`` or ``[H, R, D]``; for a bias table ``[R]`` or ``[H, R]``. If a bank gives rows for each sample,
            they have a batch axis: ``[B, 1 or H, R, D]`` or ``[B, 1 or H, R]``.

        Raises:
            ValueError: features without a bank, a bank without features, or a bank's output of another shape.
        """
        if self.bank is not None:
            return self._rows_from_bank(self.bank, features)
        if features is not None:
            raise ValueError(f"{FEATURES} must be None for a table without a bank, got features")
        rows = self.rows
        assert rows is not None
        if type(rows) is not nn.Parameter:
            check_gathered(rows, by_heads=self.by_heads)
        if self.frozen is None:
            return rows if type(self) is LabelTable else survives_reshard(self, rows)
        # not one split: where the rows are a DTensor, its backward needs a gradient of the frozen row too
        at, count = self.frozen, rows.shape[self._axis]
        before, row = rows.narrow(self._axis, 0, at), rows.narrow(self._axis, at, 1)
        after = rows.narrow(self._axis, at + 1, count - at - 1)
        return torch.cat([before, torch.zeros_like(row), after], self._axis)

    @property
    def _axis(self) -> int:
        """The axis of ``rows`` that counts labels."""
        return -1 if self.dim is None else -2

    def _rows_from_bank(self, bank: nn.Module, features: Any) -> Tensor:
        if features is None:
            raise ValueError(f"{FEATURES} must be given to a table with a bank, got None")
        rows = check.tensor("the bank's output", bank(features))
        labels = "R'" if self.num_labels is None else self.num_labels
        row = [labels] if self.dim is None else [labels, self.dim]
        alone, by_sample = ([] if self.heads is None else [self.heads]) + row, ["B", self.heads or 1, *row]
        if not _fits(rows, alone) and not _fits(rows, by_sample):
            shapes = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in (alone, by_sample))
            raise ValueError(f"the bank's output must have shape {shapes}, got {list(rows.shape)}")
        return rows

    def _clear_frozen(self) -> None:
        if self.rows is not None and self.frozen is not None:
            with torch.no_grad():
                self.rows.select(self._axis, self.frozen).zero_()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._clear_frozen()

    def get_extra_state(self) -> Tensor:
        """Give the names to a checkpoint.

        Returns:
            Bytes of JSON, ``[n]``; empty without names.
        """
        text = b"" if self.names is None else json.dumps(self.names).encode()
        return torch.tensor(list(text), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Compare the names of a checkpoint with this table's; either may have none.

        Args:
            state: ``[number of bytes]``, uint8, from :meth:`~relgraph.nn.LabelTable.get_extra_state`.

        Raises:
            ValueError: the names differ, or ``state`` is damaged.
        """
        self._check_saved_names("state", state)

    def _check_saved_names(self, key: str, state: Any, path: str = "") -> None:
        """Raise ValueError if ``state``, saved under ``key``, holds other names than this table, at ``path``."""
        names = _decode_names(key, state)
        if self.names is None or names is None:
            return
        if len(names) != len(self.names):
            raise ValueError(
                f"names must be those of the loaded state, which has {len(names)} labels, got {len(self.names)}"
                f"{f' in {path}' if path else ''}"
            )
        for label, (saved, mine) in enumerate(zip(names, self.names, strict=True)):
            if saved != mine:
                raise ValueError(
                    f"names must be those of the loaded state, got another at label {label}"
                    f"{f' of {path}' if path else ''}: the state has {saved!r}, this table {mine!r}"
                )

    def extra_repr(self) -> str:
        """Sizes, and options that differ from their defaults."""
        parts = [str(self.num_labels), str(self.dim)]
        parts += [f"{name}={value}" for name in ("heads", "frozen") if (value := getattr(self, name)) is not None]
        if self.names is not None:
            names = self.names
            short = repr(names) if len(names) <= 4 else f"({names[0]!r}, {names[1]!r}, ..., {names[-1]!r})"
            parts.append(f"names={short}")
        return ", ".join(parts)


def rows_of(table: LabelTable, features: Any) -> Tensor:
    """What the table gives when it is called; rows that nothing changes or watches are read without the call."""
    if type(table) is LabelTable and table.frozen is None and features is None:
        rows = table._parameters.get("rows")
        hooks = table._forward_hooks or table._forward_pre_hooks or table._backward_hooks or table._backward_pre_hooks
        hooks = hooks or any(_HOOKS_OF_ALL)
        # tools that move weights when they are used put another ``forward`` on the module
        if type(rows) is nn.Parameter and not hooks and "forward" not in table.__dict__:
            return rows
    return table(features) if table.bank is not None else table()


def _fits(rows: Tensor, shape: list[Any]) -> bool:
    """Whether rows have this shape; an axis given as a string may have any size."""
    sizes = zip(shape, rows.shape, strict=False)
    return rows.dim() == len(shape) and all(isinstance(wanted, str) or wanted == size for wanted, size in sizes)


def _decode_names(key: str, state: Any) -> list[str] | None:
    """The names saved as bytes under a key of a ``state_dict``, or None."""
    if check.tensor(key, state).dim() != 1 or state.is_complex():
        raise ValueError(
            f"{key} must be bytes in a tensor of shape [n], got shape {list(state.shape)} of {state.dtype}"
        )
    if not state.numel() or not check.can_look_at_data(state):
        return None
    try:
        names = json.loads(bytes(state.to("cpu", torch.uint8).tolist()))
    except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
        raise ValueError(f"{key} must hold names as JSON, got damaged bytes: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} must hold a list of names, got {shown(names)}")
    return names


def check_size(num_labels: Any) -> None:
    """Raise unless ``num_labels`` is a number of labels, or None."""
    if isinstance(num_labels, (Labeler, Labels)):
        raise TypeError(f"num_labels must be an int, got {type(num_labels).__name__}: pass its .num_labels")
    if num_labels is not None:
        check.integer("num_labels", num_labels, minimum=0)


def check_label_names(model: nn.Module, state_dict: Mapping[str, Any], prefix: str = "", *_loading: Any) -> None:
    """Compare the label names in a state with those of all tables inside a model, before anything is loaded.

    relgraph's layers compare names when they load. But torch loads a model module by module, so in your own model the
    modules before such a layer have already changed when the layer raises. Call this function first, or register it
    with ``torch.nn.Module.register_load_state_dict_pre_hook``, so that torch calls it whenever the model loads.

    Args:
        model: any module.
        state_dict: the state to load; tables or names that it lacks are not compared.
        prefix: the prefix of the model's keys in ``state_dict``.
        _loading: further arguments that torch passes to such a hook, not used.

    Raises:
        ValueError: the names of a table differ.

    Example:
        >>> class Tagger(torch.nn.Module):
        ...     def __init__(self, labeler):
        ...         super().__init__()
        ...         self.register_load_state_dict_pre_hook(rg.nn.check_label_names)
        ...         self.embedding = torch.nn.Embedding(100, 16)
        ...         self.encoder = rg.RelationEncoderLayer(16, 4, 32, labeler=labeler)
        >>> tagger, other = Tagger(rg.ClippedDistance(2)), Tagger(rg.ClippedDistance(1))
        >>> other.load_state_dict(tagger.state_dict())                          # its embedding does not change
        Traceback (most recent call last):
        ValueError: names must be those of the loaded state, which has 5 labels, got 3 in encoder.self_attn.tables.key
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a mapping from names to tensors, got {type(state_dict).__name__}")
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, got {type(prefix).__name__}")
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, LabelTable):
            name = f"{prefix}{path}".rstrip(".")
            key = f"{name}{'.' if name else ''}_extra_state"
            if key in state_dict:
                module._check_saved_names(key, state_dict[key], name)
