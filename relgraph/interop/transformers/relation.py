"""Learned tables for an attention module that had none, and the labels that it reads in a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments.brief import shown
from relgraph.interop.transformers import rotary
from relgraph.interop.transformers.common import made_once, trimmed
from relgraph.labels import Labels
from relgraph.nn import RelationTables
from relgraph.nn.made_labels import check_labeler, labels_of_lengths

OFFSET = "_relgraph_offset"
"""The attribute of a mask that says where among the keys its first query is."""

LABELS = "relation_labels"
"""The argument of a model for the labels of its tokens; it travels to the attention modules."""


class Relation(nn.Module):
    """Learned tables for an attention module that had none, read by the interface ``"relgraph"``.

    :func:`~relgraph.interop.transformers.add_relations` makes one for each layer of a model, and saves and loads them.
    To place one yourself, :meth:`attach` it to an attention module whose model was made with
    ``attn_implementation="relgraph"``. Its rows start at zero, so a trained model gives the same outputs at first. They
    are parameters of the model and of its ``state_dict``. With a cache the module must be causal self-attention; the
    positions of its queries are read from the mask of the model.

    Args:
        labeler: the labeler of the tables. One that reads lengths, such as :class:`~relgraph.ClippedDistance`, labels
            each call; for all others the model gets ``relation_labels=``.
        dim: D, the size of each head.
        heads: H, needed only with ``per_head``.
        kinds: which tables there are, as in :class:`~relgraph.RelationTables`.
        per_head: whether each head has its own rows.

    Raises:
        ValueError: a labeler without labels, and the errors of :class:`~relgraph.RelationTables`.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> rg.interop.transformers.register()
        >>> sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1, vocab_size=9)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="relgraph"))
        >>> for layer in model.model.layers:
        ...     rg.interop.transformers.Relation(rg.ClippedDistance(4), 8).attach(layer.self_attn)
        >>> model(torch.tensor([[3, 1, 4, 1]])).logits.shape
        torch.Size([1, 4, 9])
    """

    def __init__(
        self,
        labeler: Any,
        dim: int,
        heads: int | None = None,
        *,
        kinds: Sequence[str] = ("key", "value"),
        per_head: bool = False,
    ) -> None:
        super().__init__()
        num_labels, names = check_labeler(labeler, None, None)
        if num_labels is None:
            raise ValueError(f"labeler must have labels, got {shown(labeler)} with none")
        self.labeler = labeler
        self.tables = RelationTables(num_labels, dim, heads, kinds=kinds, per_head=per_head, names=names)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all rows to zero."""
        with torch.no_grad():
            for rows in self.tables.parameters():
                rows.zero_()

    def attach(self, module: nn.Module) -> None:
        """Make this the attribute ``relation`` of an attention module, which then reads it.

        Where positions are rotary, a hook of the module hands on their angles: the key table meets the query before its
        turn. So a bare assignment of the attribute raises ValueError there in the first call, if there is a key table.

        Args:
            module: a module of transformers that looks up its attention by name.

        Raises:
            NotImplementedError: a query table for rotary positions, or a turn of the query that cannot be undone.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        why = rotary.why_not(module, self.tables.kinds)
        if why is not None:
            raise NotImplementedError(
                f"module must be one for tables of {list(self.tables.kinds)}, got {type(module).__name__}: {why}"
            )
        module.relation = self
        if made_once(module, "rotary", rotary.is_rotary) and "key" in self.tables.kinds:
            rotary.hand_angles(module)

    def forward(
        self, query: Tensor, keys: int, labels: Labels | None, offset: int | Tensor | None
    ) -> tuple[Labels, dict[str, Any]]:
        """The labels of a call and the tables, as arguments of :func:`~relgraph.relation_attention`.

        Args:
            query: ``[B, H, N_q, D]``.
            keys: N_k.
            labels: those of the model; None for a labeler that reads lengths.
            offset: the position of the first query among the keys; None if they are as many.

        Returns:
            The labels, of at most N_k keys, and the tables in the dtype of ``query``.

        Raises:
            ValueError: no labels for a labeler that does not label lengths, or labels of other queries.
        """
        tables: dict[str, Any] = {name: _cast(table, query.dtype) for name, table in self.tables().items()}
        q_len = query.shape[2]
        if labels is None:
            if not getattr(self.labeler, "_reads_lengths", True):
                raise ValueError(
                    f"{LABELS} must be given, as {shown(self.labeler)} does not label lengths, and none reached the "
                    "attention: call the model that add_relations got, with relation_labels=; Trainer passes them on "
                    "if rg.interop.transformers.RelationCollator batches them"
                )
            return labels_of_lengths(self.labeler, [q_len, keys], offset, query, LABELS), tables
        if not isinstance(labels, Labels):
            raise TypeError(f"{LABELS} must be Labels when they reach the attention, got {type(labels).__name__}")
        if labels.q_len != q_len:
            raise ValueError(f"{LABELS} must label {q_len} queries and up to {keys} keys, got {labels!r}")
        if labels.k_len > keys:  # a sliding window keeps the last keys
            labels = labels.cols(labels.k_len - keys, labels.k_len)
        return labels, tables


def offset_of(q_len: int, k_len: int, mask: Tensor | None, causal: bool) -> Any:
    """Where the first query is among the keys; None if there are as many.

    ``mask`` is that of the model, ``causal`` that of its module.
    """
    if q_len == k_len:
        return None
    if not causal:
        raise NotImplementedError(
            f"relation must be on causal self-attention where keys are more than queries, got {k_len} keys and {q_len} "
            "queries of a module that is not causal: tokens of another sequence have no distance"
        )
    if mask is None:
        # transformers leaves the mask out for one query that sees all keys, and for the first tokens of a static cache
        return k_len - q_len if q_len == 1 else 0
    offset = getattr(mask, OFFSET, None)
    return _last_seen(trimmed(mask, k_len)) if offset is None else offset


def _last_seen(mask: Any) -> Tensor:
    """The position of the first query among the keys, read from a causal mask: each sees itself last.

    Queries that are padding see fewer keys, so the one that sees most counts.
    """
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    keys = torch.arange(seen.shape[-1], device=seen.device)
    queries = torch.arange(seen.shape[-2], device=seen.device)
    return (torch.where(seen, keys, -1).amax(-1) - queries).amax().clamp(min=0)


def _cast(table: Any, dtype: torch.dtype) -> Any:
    """A table, or those of a sum, in this dtype: autocast leaves parameters as they are."""
    return tuple(one.to(dtype) for one in table) if isinstance(table, tuple) else table.to(dtype)
