"""What the name ``"relgraph"`` serves: modules that look up their attention, and the bias of T5 as a table."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from relgraph.interop.transformers.common import made_once, rows_of
from relgraph.interop.transformers.families import all_families, bases_of
from relgraph.interop.transformers.t5 import labeler_of
from relgraph.interop.transformers.words import unserved
from relgraph.labels import Labels

NAME = "relgraph"
"""The name of the interface: ``attn_implementation="relgraph"``."""

BY_TABLE = (
    "t5.T5Attention", "mt5.MT5Attention", "umt5.UMT5Attention", "switch_transformers.SwitchTransformersAttention",
    "pop2piano.Pop2PianoAttention", "pix2struct.Pix2StructTextAttention", "udop.UdopAttention",
)  # fmt: skip
"""The classes of transformers that hand the result of ``compute_bias`` to the attention function unread."""

_MARK = "_relgraph_bias"
"""The attribute of a class whose ``compute_bias`` gives a table."""


def through_interface(kind: type) -> bool:
    """Whether the forward of a class of modules looks up an attention function of transformers."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)  # pyright: ignore[reportAttributeAccessIssue]
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def override() -> None:
    """Let the classes that are loaded give their table ``[H, R]`` while their implementation is ``"relgraph"``."""
    for kind in BY_TABLE:
        file, name = kind.split(".")
        own: Any = getattr(sys.modules.get(f"transformers.models.{file}.modeling_{file}"), name, None)
        if own is None or _MARK in vars(own) or not through_interface(own):
            continue
        setattr(own, _MARK, True)
        own.compute_bias = _table_or(own.compute_bias)


def _table_or(original: Any) -> Any:
    """``compute_bias`` of a class, which gives the table in place of the bias of all pairs."""

    @functools.wraps(original)
    def compute_bias(self: Any, *args: Any, **given: Any) -> Tensor:
        if self.config._attn_implementation == NAME:
            return rows_of(self.relative_attention_bias).t()
        return original(self, *args, **given)

    return compute_bias


def is_table(module: Any, position_bias: Tensor) -> bool:
    """Whether a bias is the table of such a class; other biases have four axes."""
    return position_bias.dim() == 2 and hasattr(type(module), _MARK)


def is_nothing(module: Any, position_bias: Tensor) -> bool:
    """Whether a bias is that of a decoder over the states of an encoder: zeros, since its own are tables.

    Pix2Struct has decoders only.
    """
    return position_bias.dim() == 4 and hasattr(type(module), _MARK) and getattr(module, "is_decoder", True)


def with_table(
    module: Any,
    table: Tensor,
    q_len: int,
    k_len: int,
    offset: Any,
    labels: Labels | None,
    tables: dict[str, Any],
) -> tuple[Labels, dict[str, Any]]:
    """The labels and tables of a relation, if there are any, after the buckets of distances and their table."""
    k_len = k_len if labels is None else labels.k_len
    buckets = made_once(module, "labeler", labeler_of)(q_len, k_len, q_offset=offset)
    if labels is None:
        return buckets, {"bias_table": table}
    count = len(labels._summands)
    several = {name: rows if isinstance(rows, tuple) else (rows,) for name, rows in tables.items()}
    bias = several.pop("bias_table", (None,) * count)
    both = {name: (None, *rows) for name, rows in several.items()}
    return buckets + labels, both | {"bias_table": (table, *bias)}


def check_served(model: nn.Module) -> None:
    """Raise NotImplementedError if the name reaches no attention of a model that ``patch`` serves."""
    override()
    kinds = {type(module) for module in model.modules() if through_interface(type(module))}
    for why in filter(None, map(unserved, kinds)):
        raise NotImplementedError(f"attn_implementation must not be {NAME!r} for {type(model).__name__}: {why}")
    if kinds:
        return
    families = all_families().values()
    for name, module in model.named_modules():
        for family in () if hasattr(type(module), "_relgraph_own") else families:  # a patched one is served already
            if bases_of(module) & family.kinds.keys() and family.why_not(module) is None:
                raise NotImplementedError(
                    f"attn_implementation must not be {NAME!r} for {type(model).__name__}, as {name} "
                    f"({type(module).__name__}) does not look up its attention by name: use "
                    "rg.interop.transformers.patch(model)"
                )


def family_of(module: Any) -> str | None:
    """The family of a module that looks up ``"relgraph"``, for reports; None for one that does not."""
    if not through_interface(type(module)) or getattr(module.config, "_attn_implementation", None) != NAME:
        return None
    if getattr(module, "relation", None) is not None:
        return "relations"
    return "t5" if hasattr(type(module), _MARK) else "interface"


def leave(model: nn.Module) -> list[nn.Module]:
    """Let transformers choose the implementation of a model that has none but ours, and return its modules."""
    families = {module: family_of(module) for module in model.modules() if hasattr(module, "config")}
    found = [module for module, family in families.items() if family is not None]
    if not isinstance(model, PreTrainedModel) or not found or "relations" in families.values():
        return []
    try:
        chosen = model.get_correct_attn_implementation(None)
    except ValueError:
        chosen = "eager"
    model.set_attn_implementation(chosen)
    return found
