"""The weights and settings of torch's layers, copied into a module whose submodules have the same names."""

from __future__ import annotations

from typing import Any

from torch import nn

from relgraph.arguments import check
from relgraph.nn.table import LabelTable
from relgraph.nn.tables import RelationTables


def check_plain(name: str, plain: Any, kind: type[nn.Module], new_tables: Any) -> None:
    """Raise unless ``plain`` is a module of torch's class ``kind``, and ``new_tables`` a way in which tables begin."""
    check.choice("new_tables", new_tables, ("zero", "random"))
    if not isinstance(plain, kind):
        raise TypeError(f"{name} must be a nn.{kind.__name__}, got {type(plain).__name__}")


def check_plain_attention(name: str, attention: Any) -> None:
    """Raise ValueError unless torch's attention is batch first; NotImplementedError if it adds keys of its own."""
    if not attention.batch_first:
        raise ValueError(
            f"{name} must be batch first, as the new one is, got batch_first=False: make one with batch_first=True, "
            "load the state of this one into it, and transpose its inputs"
        )
    if attention.bias_k is not None or attention.add_zero_attn:
        raise NotImplementedError(f"{name} must not add keys of its own, got add_bias_kv or add_zero_attn")


def copy_plain(name: str, made: nn.Module, plain: nn.Module, new_tables: str) -> None:
    """Copy all weights, dropouts and epsilons of ``plain`` into ``made``, and let new tables begin as asked.

    Raises:
        ValueError: a parameter of ``plain``, which errors call ``name``, has no place in ``made``.
    """
    state, new = plain.state_dict(), made.state_dict()
    for key, tensor in state.items():
        if key not in new or new[key].shape != tensor.shape:
            got = "no such parameter" if key not in new else list(new[key].shape)
            raise ValueError(
                f"the attention of the new module must have the projections of {name}: {key} of shape "
                f"{list(tensor.shape)}, got {got}"
            )
    made.load_state_dict(state, strict=False)
    for path, module in plain.named_modules():
        if not isinstance(module, (nn.Dropout, nn.MultiheadAttention, nn.LayerNorm)):
            continue
        for setting in ("p", "dropout", "eps"):
            if hasattr(module, setting):
                setattr(made.get_submodule(path), setting, getattr(module, setting))
    if new_tables == "zero":
        for tables in made.modules():
            if isinstance(tables, RelationTables) and not tables.shared:
                for table in tables.modules():
                    if isinstance(table, LabelTable):
                        table._zero()
    made.train(plain.training)
