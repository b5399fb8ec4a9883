"""The weights and settings of torch's layers, copied into a module whose submodules have the same names."""

from __future__ import annotations

from typing import Any

from torch import nn

from relgraph.arguments import check
from relgraph.nn.edge_maps import EdgeMaps
from relgraph.nn.table import LabelTable
from relgraph.nn.tables import RelationTables

_OF_TORCH = ("weight", "bias", "in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""Names of parameters in torch's modules; new ones, such as biases of queries, have other names."""


def check_plain(name: str, plain: Any, kind: type[nn.Module], new_tables: Any) -> None:
    """Raise unless ``plain`` is a module of torch's class ``kind``, and ``new_tables`` a way in which tables begin."""
    check.choice("new_tables", new_tables, ("zero", "random"))
    if not isinstance(plain, kind):
        raise TypeError(f"{name} must be a nn.{kind.__name__}, got {type(plain).__name__}")
    if type(plain).forward is not kind.forward:
        raise TypeError(
            f"{name} must compute what nn.{kind.__name__} does, got {type(plain).__name__} with its own forward"
        )


def check_plain_attention(name: str, attention: Any) -> None:
    """Raise ValueError unless torch's attention is batch first; NotImplementedError if it adds keys of its own."""
    if not attention.batch_first:
        raise ValueError(
            f"{name} must be batch first, as the new one is, got batch_first=False: make one with batch_first=True, "
            "load the state of this one into it, and transpose its inputs"
        )
    if attention.bias_k is not None or attention.add_zero_attn:
        raise NotImplementedError(f"{name} must not add keys of its own, got add_bias_kv or add_zero_attn")


def zero_tables(made: nn.Module, passed: Any) -> None:
    """Set all tables and maps of edge features to zero, but not shared tables and those that a caller passed."""
    for tables in made.modules():
        if isinstance(tables, EdgeMaps):
            for weight in tables.parameters():
                nn.init.zeros_(weight)
        if isinstance(tables, RelationTables) and not tables.shared and tables is not passed:
            for table in tables.modules():
                if isinstance(table, LabelTable) and table.rows is not None:
                    nn.init.zeros_(table.rows)


def copy_plain(name: str, made: nn.Module, plain: nn.Module) -> None:
    """Copy all weights, dropouts and epsilons of ``plain`` into ``made``; raise unless both compute the same."""
    state, new = plain.state_dict(), made.state_dict()
    for key, tensor in state.items():
        if key not in new or new[key].shape != tensor.shape:
            got = "no such parameter" if key not in new else list(new[key].shape)
            raise ValueError(
                f"the new module must have the parameters of {name}: {key} of shape {list(tensor.shape)}, got {got}"
            )
    of_plain = dict(plain.named_modules())
    for key in new.keys() - state.keys():
        owner, _, own = key.rpartition(".")
        if owner in of_plain and own in _OF_TORCH:
            raise ValueError(f"{name} must have {key}, as the new module has, got none")
    for path, module in of_plain.items():
        mine: Any = made.get_submodule(path)
        if isinstance(mine, nn.LayerNorm) and type(module) is not nn.LayerNorm:
            raise ValueError(f"{path} of {name} must be a nn.LayerNorm, got {type(module).__name__}")
        if isinstance(module, nn.MultiheadAttention) and module.num_heads != mine.num_heads:
            heads = f"{mine.num_heads} heads, as the new one, got {module.num_heads}"
            raise ValueError(f"{path or 'the attention'} of {name} must have {heads}")
    made.load_state_dict(state, strict=False)
    for path, module in of_plain.items():
        if isinstance(module, (nn.Dropout, nn.MultiheadAttention, nn.LayerNorm)):
            for setting in ("p", "dropout", "eps"):
                if hasattr(module, setting):
                    setattr(made.get_submodule(path), setting, getattr(module, setting))
    made.train(plain.training)
