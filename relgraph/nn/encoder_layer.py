"""The encoder layer: torch's TransformerEncoderLayer with self-attention over a labeled graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relgraph.arguments import check
from relgraph.call import LabelsLike, Table
from relgraph.graphs import Graph
from relgraph.nn.attention import RelationAttention
from relgraph.nn.cache import KVCache, restores_cache_on_error
from relgraph.nn.edge_states import Pending
from relgraph.nn.inputs import Names
from relgraph.nn.layer_parts import Activation, Layer, check_input, check_place, check_sizes, make_attention, residual
from relgraph.nn.tables import NumLabels, RelationTables

_NAMES = Names("src", "src", "src", attn_mask="src_mask", key_padding_mask="src_key_padding_mask", width="d_model")
"""What the layer calls the arguments of its attention."""


class RelationEncoderLayer(Layer):
    """Self-attention over a labeled graph, then a feed-forward network; each with a residual sum and a norm.

    With ``norm_first=False`` (the default) each step computes norm(x + step(x)), otherwise x + step(norm(x)). Row i of
    the self-attention is the query, row j the key. The argument order, the submodules' names and the order of
    computation are those of :class:`~torch.nn.TransformerEncoderLayer`, so its state loads (with ``strict=False``,
    because it has no tables). With a ``labeler`` the layer makes its own labels, and
    :class:`~torch.nn.TransformerEncoder` can stack it (``enable_nested_tensor=False``). That stack gives every layer a
    copy of the tables, even if you passed them in as :class:`~relgraph.RelationTables`;
    :class:`~relgraph.RelationEncoder` keeps those tied. With ``is_causal=True`` and a cache this is the layer of a
    decoder-only model.

    Source: Vaswani et al. 2017, section 3.1, with the self-attention of Shaw, Uszkoreit, Vaswani 2018; conventions of
    :class:`~torch.nn.TransformerEncoderLayer`.

    Args:
        d_model: E, the width of inputs and outputs.
        nhead: H; divides E unless there is a ``head_dim``.
        dim_feedforward: width of the feed-forward network.
        dropout: probability in ``[0, 1)`` of dropout in training, on attention weights and in each step.
        activation: ``"relu"``, ``"gelu"``, ``"silu"`` or a function.
        layer_norm_eps: added to variances in the norms.
        batch_first: must be True: ``[B, N, E]``.
        norm_first: whether norms come before each step, not after each sum.
        bias: whether projections and norms have a bias.
        device: device of the parameters.
        dtype: floating type of the parameters.
        labeler: makes the labels when a call gives none: ``labeler(n)`` for n rows, ``labeler(n, past + n,
            q_offset=past)`` with a cache. For ``labels=graph`` the layer calls ``labeler(graph)``. The tables take its
            number of labels and their names.
        num_labels: R, if there is no labeler.
        tables: kinds of tables, or :class:`~relgraph.RelationTables`: see :class:`~relgraph.RelationAttention`. ``()``
            makes a layer without labels; with neither of the three and no ``attention`` it raises.
        impl: the implementation of :func:`~relgraph.relation_attention`, or None for its rule.
        attention: the self-attention, a :class:`~relgraph.RelationAttention` with this width and number of heads, for
            all options that it has; then ``labeler``, ``num_labels``, ``tables`` and ``impl`` are its own, and so are
            its dropout and biases. A stack copies it with the layer.

    Raises:
        ValueError: ``batch_first=False``, an unknown activation, ``num_labels`` with a labeler, an ``attention`` of
            another size or beside options of its own, parameters of more than 2³¹ elements, and the errors of
            :class:`~relgraph.RelationAttention`.

    Example:
        >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> layer(torch.randn(2, 7, 16)).shape
        torch.Size([2, 7, 16])
        >>> attention = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(2), score=rg.score.Softcap(5.0))
        >>> rg.RelationEncoderLayer(16, 4, 32, attention=attention)(torch.randn(2, 7, 16)).shape
        torch.Size([2, 7, 16])
    """

    _plain_kind = nn.TransformerEncoderLayer

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = functional.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        labeler: Callable[..., Any] | None = None,
        num_labels: NumLabels = None,
        tables: Sequence[str] | RelationTables = ("key", "value"),
        impl: str | None = None,
        attention: RelationAttention | None = None,
    ) -> None:
        super().__init__()
        self._begin(batch_first, norm_first, bias)
        check_sizes(d_model, nhead, dim_feedforward, layer_norm_eps, attention)
        factory = check_place(device, dtype, attention)
        own = {"labeler": labeler, "num_labels": num_labels, "tables": tables, "impl": impl}
        others = {"dropout": dropout, "bias": bias, **factory}
        self.self_attn = make_attention("attention", attention, (d_model, nhead), own, others, _NAMES)
        self.self_attn._states_later = True
        self._make_steps(2, (d_model, dim_feedforward), dropout, activation, layer_norm_eps, bias, factory)

    @restores_cache_on_error
    def forward(  # noqa: D417
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        labels: LabelsLike | Graph = None,
        cache: KVCache | None = None,
        bank_features: Any = None,
        row_scores: Table = None,
        edge_attr: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor | Any:
        """Attend, then feed forward.

        As in :class:`~torch.nn.TransformerEncoderLayer`, True in a mask blocks, and floats are added to the scores.

        Args:
            src: ``[B, N, E]``, ``[N, E]``, or packed ``[T, E]`` when the labels are packed.
            src_mask: which pairs are blocked, ``[N, N]``, ``[B·H, N, N]`` or ``[B, H, N, N]``.
            src_key_padding_mask: ``[B, N]``, True for padding; with a cache for the new rows only.
            is_causal: if True, no row sees a later row; combines with the masks. A cache needs it, unless the labels do
                the same, as those of :class:`~relgraph.Window` ``(n, 0)``.
            labels: labels of all pairs; this and all further arguments as in
                :meth:`~relgraph.RelationAttention.forward`. ``row_scores`` are for the new rows only with a cache.
            bank_features: the input of the tables' banks; for a sum a tuple, one entry per part.
            edge_attr: ``[E, F]``, a vector for each edge of the labels, for an attention with ``edge_dim``.
            positions: ``[N]`` or ``[B, N]``, the position of each row.

        Returns:
            The shape of ``src``, ``[B, N, E]``; with an attention that has ``edge_update`` a pair of this and the next
            vectors of the edges, ``[E, F]``.

        Raises:
            ValueError: shapes, dtypes, devices or values that do not fit; no labels for a layer with tables;
                ``row_scores`` for a layer with a key table, or without tables.
            NotImplementedError: a cache with packed labels, or a call that the implementation does not support.

        Example:
            >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2)).eval()
            >>> x, cache = torch.randn(2, 6, 16), rg.KVCache()                      # a decoder-only model, row by row
            >>> steps = [layer(x[:, i : i + 1], is_causal=True, cache=cache) for i in range(6)]
            >>> torch.allclose(torch.cat(steps, 1), layer(x, is_causal=True), atol=1e-5)
            True
        """
        if cache is not None and not isinstance(cache, KVCache):
            raise TypeError(f"cache must be a KVCache or None, got {type(cache).__name__}")
        check.boolean("is_causal", is_causal)
        check_input("src", src, self)

        pending: list[Pending] = []

        def attend_self(x: Tensor) -> Tensor:
            z: Any = self.self_attn(
                x, labels=labels, attn_mask=src_mask, key_padding_mask=src_key_padding_mask, is_causal=is_causal,
                cache=cache, bank_features=bank_features, row_scores=row_scores, edge_attr=edge_attr,
                positions=positions,
            )  # fmt: skip
            if self.self_attn.edge_states is not None:
                z, states = z  # [B, N, E], and what makes the next [P, F]
                pending.append(states)
            return self.dropout1(z)

        def feed_forward(x: Tensor) -> Tensor:
            return self.dropout2(self._feed_forward(x))

        src = residual(src, self.norm_first, (self.norm1, attend_self), (self.norm2, feed_forward))
        return (src, pending[0].finish(src)) if pending else src
