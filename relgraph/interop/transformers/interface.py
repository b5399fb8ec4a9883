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
from relgraph.interop.transformers.common import SINKS, compute, refuse, trimmed, wants_weights
from relgraph.labelers.sequence.distance import DistanceLabeler
from relgraph.labels import Labels
from relgraph.nn import RelationTables
from relgraph.score import Softcap

NAME = "relgraph"
"""The name of the interface: ``attn_implementation="relgraph"``."""

OFFSET = "_relgraph_offset"
"""The attribute of a mask that says where among the keys its first query is."""


class Relation(nn.Module):
    """Learned tables for an attention module that had none, read by the interface ``"relgraph"``.

    Assign it to the attribute ``relation`` of an attention module whose model was made with
    ``attn_implementation="relgraph"``. Its rows start at zero, so a trained model gives the same outputs at first. They
    are parameters of the model and of its ``state_dict``; ``from_pretrained`` leaves them out, because it makes a model
    without them: attach them again and load their own ``state_dict``. With a
    cache the module must be causal self-attention; the positions of its queries are read from the mask of the model.

    Args:
        labeler: a labeler of the distance of two tokens, such as :class:`~relgraph.ClippedDistance`.
        dim: D, the size of a head.
        heads: H, needed only with ``per_head``.
        kinds: which tables there are, as in :class:`~relgraph.RelationTables`.
        per_head: whether each head has its own rows.

    Raises:
        TypeError: a labeler of another kind, and the errors of :class:`~relgraph.RelationTables`.
        ValueError: the errors of :class:`~relgraph.RelationTables`.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> rg.interop.transformers.register()
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1, vocab_size=9)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="relgraph"))
        >>> for layer in model.model.layers:
        ...     layer.self_attn.relation = rg.interop.transformers.Relation(rg.ClippedDistance(4), 8)
        >>> model(torch.tensor([[3, 1, 4, 1]])).logits.shape
        torch.Size([1, 4, 9])
    """

    def __init__(
        self,
        labeler: DistanceLabeler,
        dim: int,
        heads: int | None = None,
        *,
        kinds: tuple[str, ...] = ("key", "value"),
        per_head: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(labeler, DistanceLabeler):
            raise TypeError(f"labeler must be one of distances, such as rg.ClippedDistance, got {shown(labeler)}")
        self.labeler = labeler
        self.tables = RelationTables(
            labeler.num_labels, dim, heads, kinds=kinds, per_head=per_head, names=labeler.names
        )  # fmt: skip
        with torch.no_grad():
            for rows in self.tables.parameters():
                rows.zero_()


def masks(**given: Any) -> Tensor | None:
    """The mask that transformers makes for fused attention, which says where in the cache its queries begin.

    A dynamic cache ends with the queries; a static one has room after them. The attention function gets keys and a mask
    but no cache, so the mask carries this number.
    """
    mask = sdpa_mask(**given)
    if mask is not None:
        position = given.get("cache_position")  # before transformers 5; since then an offset
        first = given.get("q_offset", 0) if position is None else position[0]
        setattr(mask, OFFSET, first - given.get("kv_offset", 0))
    return mask


def _labels(
    relation: Relation, q_len: int, k_len: int, position: Tensor | None, mask: Tensor | None, causal: bool
) -> Labels:
    """The labels of a call; ``position`` and ``mask`` are those of the model, ``causal`` is that of its module."""
    if q_len == k_len:
        return relation.labeler(q_len, k_len)
    if not causal:
        raise NotImplementedError(
            f"relation must be on causal self-attention where keys are more than queries, got {k_len} keys and {q_len} "
            "queries of a module that is not causal: tokens of another sequence have no distance"
        )
    if position is not None:
        offset = position.reshape(-1)[0]
    elif mask is None:
        # transformers leaves the mask out for one query that sees all keys, and for the first tokens of a static cache
        offset = k_len - q_len if q_len == 1 else 0
    else:
        offset = getattr(mask, OFFSET, None)
        if offset is None:
            offset = _last_seen(trimmed(mask, k_len))
    return relation.labeler(q_len, k_len, q_offset=offset)


def _last_seen(mask: Any) -> Tensor:
    """The position of the first query among the keys, read from a causal mask: each sees itself last.

    Queries that are padding see fewer keys, so the one that sees most counts.
    """
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    keys = torch.arange(seen.shape[-1], device=seen.device)
    queries = torch.arange(seen.shape[-2], device=seen.device)
    return (torch.where(seen, keys, -1).amax(-1) - queries).amax().clamp(min=0)


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

    The attribute ``relation`` of the module, a :class:`Relation`, may hold tables; of ``given``, ``softcap``,
    ``output_attentions`` and ``cache_position`` are read.
    """
    refuse(module, given, "head_mask", "layer_head_mask", SINKS)
    mask = _joined(trimmed(position_bias, key.shape[-2]), trimmed(attention_mask, key.shape[-2]))
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    relation = getattr(module, "relation", None)
    labels, tables = None, {}
    if isinstance(relation, Relation):
        position = given.get("cache_position")
        labels = _labels(relation, query.shape[2], key.shape[2], position, attention_mask, causal)
        tables = relation.tables()
    softcap = given.get("softcap")
    output, weights = compute(
        module, query, key, value, labels, mask=mask, dropout=dropout, scale=scaling,
        need_weights=wants_weights(module, given),
        is_causal=attention_mask is None and query.shape[2] > 1 and causal,
        q_offset=0 if labels is None and attention_mask is None else None,
        score=None if softcap is None else Softcap(softcap), **tables,
    )  # fmt: skip
    return output.unflatten(-1, (query.shape[1], -1)), weights


def register() -> None:
    """Make ``"relgraph"`` an attention implementation of transformers, with the masks that it needs.

    Models made or loaded with ``attn_implementation="relgraph"``, or switched by ``set_attn_implementation``, then
    compute their attention by :func:`~relgraph.relation_attention`. This works for all models that let you choose
    attention by name. A model with biases, such as T5's position bias, makes them as N² elements: for such a model use
    :func:`~relgraph.interop.transformers.patch`. A :class:`~relgraph.interop.transformers.Relation` gives a module
    learned tables: a model that has one warns in ``save_pretrained``, as ``from_pretrained`` does not make them, and
    ``set_attn_implementation`` refuses others, which would ignore them. A second call changes nothing.

    Some models look up their attention in a separate table and cannot use it: BERT before transformers 5 and its copies
    raise ``KeyError: 'relgraph'`` when they are made.

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


def _guard(method: str, look: Callable[..., None]) -> None:
    """Let models call ``look`` with the same arguments before a method; once per method."""
    original = getattr(PreTrainedModel, method)
    if hasattr(original, "_relgraph_guard"):
        return

    @functools.wraps(original)
    def guarded(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(module, Relation) for module in self.modules()):
            look(*args, **kwargs)
        return original(self, *args, **kwargs)

    guarded._relgraph_guard = True  # pyright: ignore[reportAttributeAccessIssue]
    setattr(PreTrainedModel, method, guarded)


def _warn_of_relations(*_: Any, **__: Any) -> None:
    warnings.warn(
        "from_pretrained will leave out the Relation modules of this model: it makes a model without them, and ignores "
        "their rows. After from_pretrained, attach each Relation again and load its rows, which "
        "relation.state_dict() gives",
        stacklevel=3,
    )


def _check_switch(attn_implementation: Any, *_: Any, **__: Any) -> None:
    """Raise ValueError unless all parts of a model that has relations keep the implementation that reads them."""
    wanted = attn_implementation.values() if isinstance(attn_implementation, dict) else (attn_implementation,)
    for name in wanted:
        if name != NAME:
            raise ValueError(
                f"attn_implementation must stay {NAME!r} for a model with Relation modules, which no other reads, got "
                f"{shown(name)}: delete the attribute relation of its attention modules first"
            )


def _joined(bias: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """One mask that is added to scores, or what there is of both."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    return torch.where(mask, bias, float("-inf")) if mask.dtype == torch.bool else bias + mask
