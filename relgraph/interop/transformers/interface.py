"""The attention interface ``"relgraph"``, for all models that let users choose their attention by name.

transformers passes such a function the module, queries, keys, values and a mask. A second registry says how to make the
mask. If a name is in only one of them, models get no mask at all, and read padding as text; here one call fills both.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from relgraph.arguments.brief import shown
from relgraph.interop.transformers import by_name, saved
from relgraph.interop.transformers.by_name import NAME
from relgraph.interop.transformers.common import SINKS, compute, trimmed, wants_weights
from relgraph.interop.transformers.relation import LABELS, OFFSET, Relation, offset_of
from relgraph.interop.transformers.rotary import before_turn
from relgraph.score import Softcap

RESTORED_BY: list[Callable[[PreTrainedModel], None]] = []
"""What gives a model that is being made the relations of its configuration; ``adding``, which imports this, adds it."""


def masks(**given: Any) -> Tensor | None:
    """The mask that transformers makes for fused attention, which says where in the cache its queries begin.

    A dynamic cache ends with the queries; a static one has room after them. The attention function gets keys and a mask
    but no cache, so the mask carries this number.
    """
    mask = sdpa_mask(**given)
    if mask is not None:
        setattr(mask, OFFSET, given["q_offset"] - given["kv_offset"])  # a default would hide that one is renamed
    return mask


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention in the form of the interface: ``[B, N_q, H, D_v]``, and the weights or None.

    The attribute ``relation`` of the module, a :class:`Relation`, perhaps wrapped by an adapter, may hold tables; of
    ``given``, ``relation_labels``, ``softcap``, ``s_aux``, ``sinks`` (one per query) and ``output_attentions``
    are read.
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    labels, tables = None, {}
    relation = getattr(module, "relation", None)
    table = position_bias if position_bias is not None and by_name.is_table(module, position_bias) else None
    if relation is not None or table is not None:
        q_len, keys, offset = query.shape[2], key.shape[2], None
        passed = given.get(LABELS)
        if table is not None or passed is None:
            offset = offset_of(q_len, keys, attention_mask, causal)
        if relation is not None:
            labels, tables = relation(query, keys, passed, offset)
            tables = before_turn(module, query, scaling, tables, given)
        if table is not None:
            labels, tables = by_name.with_table(module, table, q_len, keys, offset, labels, tables)
            position_bias = None
        assert labels is not None
        if labels.k_len < key.shape[2]:  # a static cache has room after the keys that there are
            key, value = key[:, :, : labels.k_len], value[:, :, : labels.k_len]
    elif position_bias is not None and by_name.is_nothing(module, position_bias):
        position_bias = None
    mask = _joined(trimmed(position_bias, key.shape[-2]), trimmed(attention_mask, key.shape[-2]))
    softcap, sinks = given.get("softcap"), given.get("sinks")
    output, weights = compute(
        module, query, key, value, labels, mask=mask, dropout=dropout, scale=scaling,
        need_weights=wants_weights(module, given),
        is_causal=attention_mask is None and query.shape[2] > 1 and causal,
        q_offset=0 if labels is None and attention_mask is None else None,
        score=None if softcap is None else Softcap(softcap), sink=given.get(SINKS),
        row_sinks=None if sinks is None else sinks.squeeze(-1), **tables,
    )  # fmt: skip
    return output.unflatten(-1, (query.shape[1], -1)), weights  # [B, N_q, H, D_v] from [B, N_q, H · D_v]


def register() -> None:
    """Make ``"relgraph"`` an attention implementation of transformers, with the masks that it needs.

    Models made or loaded with ``attn_implementation="relgraph"``, or switched by ``set_attn_implementation``, then
    compute their attention by :func:`~relgraph.relation_attention`. This works for all models that let you choose
    attention by name. T5, mT5, UMT5, Switch Transformers, Pop2Piano, and the decoders of Pix2Struct and UDOP then read
    their position bias as a table, and make no N² elements of it. For other models with tables use
    :func:`~relgraph.interop.transformers.patch`: if the name does not serve any attention of such a model,
    NotImplementedError says so when the model is made or switched. :func:`~relgraph.interop.transformers.report` shows
    what relgraph computes, and :func:`~relgraph.interop.transformers.unpatch` undoes both ways.

    :func:`~relgraph.interop.transformers.add_relations` gives a model learned tables; ``set_attn_implementation``
    refuses other names for such a model. A second call changes nothing.

    Raises:
        ImportError: transformers is missing, or a version that relgraph does not know; on import of this module.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> rg.interop.transformers.register()
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1)
        >>> model = BertModel(BertConfig(**sizes, attn_implementation="relgraph"))
        >>> model(torch.tensor([[3, 1, 4]])).last_hidden_state.shape
        torch.Size([1, 3, 16])
    """
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, masks)
    _guard("save_pretrained", _warn_of_relations)
    _guard("set_attn_implementation", _check_switch)
    by_name.override()


def _guard(method: str, look: Callable[..., None]) -> None:
    """Let models call ``look`` with the same arguments before a method; once per method."""
    original = getattr(PreTrainedModel, method)
    if hasattr(original, "_relgraph_guard"):
        return

    @functools.wraps(original)
    def guarded(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        look(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    guarded._relgraph_guard = True  # pyright: ignore[reportAttributeAccessIssue]
    setattr(PreTrainedModel, method, guarded)


def look_after_making() -> None:
    """Let each model that is made get the relations of its configuration, and check that the name serves it; once."""
    original = PreTrainedModel.post_init
    if hasattr(original, "_relgraph_guard"):
        return

    @functools.wraps(original)
    def post_init(self: PreTrainedModel) -> None:
        original(self)
        if getattr(self.config, saved.ENTRY, None) is not None:
            for restore in RESTORED_BY:
                restore(self)
        if self.config._attn_implementation == NAME:
            by_name.check_served(self)

    post_init._relgraph_guard = True  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedModel.post_init = post_init


def _warn_of_relations(model: PreTrainedModel, *_: Any, **__: Any) -> None:
    if not _has_relations(model):
        return
    entry = getattr(model.config, saved.ENTRY, None)
    if entry is None:
        warnings.warn(
            "from_pretrained will leave out the Relation modules of this model: it makes a model without them, and "
            "ignores their rows. add_relations(model, labeler) makes those that from_pretrained brings back; or after "
            "from_pretrained, attach each Relation again and load its rows, which relation.state_dict() gives",
            stacklevel=3,
        )
    elif entry["labeler"] is None:
        warnings.warn(
            f"from_pretrained will leave out the relations of this model, as their labeler, {entry['class']}, is not "
            "one of relgraph: load it by rg.interop.transformers.from_pretrained(path, labeler=...)",
            stacklevel=3,
        )


def _has_relations(model: nn.Module) -> bool:
    return any(isinstance(module, Relation) for module in model.modules())


def _check_switch(model: PreTrainedModel, attn_implementation: Any, *_: Any, **__: Any) -> None:
    """Raise ValueError unless all parts of a model that has relations keep the implementation that reads them.

    Raise NotImplementedError if the name ``"relgraph"`` does not serve a model.
    """
    several = isinstance(attn_implementation, dict)
    for name in attn_implementation.values() if several else (attn_implementation,):
        if name != NAME and _has_relations(model):
            raise ValueError(
                f"attn_implementation must stay {NAME!r} for a model with Relation modules, which no other reads, got "
                f"{shown(name)}: delete the attribute relation of its attention modules first"
            )
        if name == NAME:
            by_name.check_served(model)


def _joined(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """One mask that is added to scores, or what there is of both."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    return torch.where(mask, bias, float("-inf")) if mask.dtype == torch.bool else bias + mask
