"""Attention with a learned bias for every pair: over a pair representation, or with biases from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call.operands import LabelsLike
from relgraph.functional.attention import relation_attention
from relgraph.impl.rule import IMPLEMENTATIONS
from relgraph.nn.projections import check_head_dim
from relgraph.nn.tables import RelationTables, check_given

_BIASED = ("query", "key", "value", "gate", "output")
"""The projections that may have a bias."""


class _GatedAttention(nn.Module):
    """The projections of both layers, and what they compute from normalized inputs."""

    query_proj: nn.Linear
    key_proj: nn.Linear
    value_proj: nn.Linear
    gate_proj: nn.Linear
    tables: Any  # RelationTables, or None

    def __init__(
        self, width: int, pair_width: int, heads: int, head_dim: int, biased: Sequence[str], tables: Any, impl: Any,
        device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        check.parameter_size(width=width, heads=heads, head_dim=head_dim)
        check.parameter_size(pair_width=pair_width, heads=heads)
        if tables is not None and not isinstance(tables, RelationTables):
            raise TypeError(f"tables must be RelationTables or None, got {type(tables).__name__}")
        factory = check.parameter_place(device, dtype)
        self.width, self.pair_width, self.heads, self.head_dim = width, pair_width, heads, head_dim
        self.impl = None if impl is None else check.choice("impl", impl, tuple(IMPLEMENTATIONS))
        self.norm = nn.LayerNorm(width, **factory)
        for name in _BIASED[:4]:
            setattr(self, f"{name}_proj", nn.Linear(width, heads * head_dim, name in biased, **factory))
        self.pair_bias = nn.Linear(pair_width, heads, bias=False, **factory)
        self.out_proj = nn.Linear(heads * head_dim, width, "output" in biased, **factory)
        self.tables = None if tables is None else check_given(tables, None, heads, head_dim)

    def _attend(self, x: Tensor, pair: Tensor, hidden: Tensor | None, labels: Any) -> Tensor:
        """The output for ``[B, S, N, width]`` or ``[B, N, width]``, with biases from ``[B, N, N, pair_width]``.

        Rows of S share the biases of their batch row. ``hidden`` is True at keys that nothing attends to, ``[B, S, N]``
        or ``[B, N]``.
        """
        query, key, value = (
            project(x).unflatten(-1, (self.heads, self.head_dim))
            for project in (self.query_proj, self.key_proj, self.value_proj)
        )
        tables: dict[str, Any] = {} if self.tables is None else self.tables()
        biases = self.pair_bias(pair).permute(0, 3, 1, 2).contiguous()
        options: dict[str, Any] = {"scale": self.head_dim**-0.5, "impl": self.impl}

        def attend(query: Tensor, key: Tensor, value: Tensor, biases: Tensor) -> Tensor:
            query, key, value = (each.transpose(1, 2) for each in (query, key, value))
            z = relation_attention(query, key, value, labels, **tables, attn_mask=biases, **options)
            return z.transpose(1, 2)

        if x.dim() == 3:
            if hidden is not None:
                biases = biases.masked_fill(hidden[:, None, None], float("-inf"))
            z = attend(query, key, value, biases)
        else:
            if hidden is not None:
                query, key, tables = _with_hidden_keys(query, key, tables, hidden)
            rows = [attend(*of_one) for of_one in zip(query, key, value, biases[:, None], strict=True)]
            z = torch.stack(rows) if rows else value
            if hidden is not None:
                z = z.masked_fill(hidden.all(-1)[:, :, None, None, None], 0.0)
        return self.out_proj(torch.sigmoid(self.gate_proj(x)) * z.flatten(-2))

    def _checked(self, name: str, x: Any, width: int, shapes: Sequence[str]) -> Tensor:
        """``x``, floating, of one of these shapes and this width."""
        check.floating(name, x)
        axes = [shape.count(",") + 1 for shape in shapes]
        if x.dim() not in axes or x.shape[-1] != width:
            raise ValueError(f"{name} must have shape {' or '.join(shapes)} with C = {width}, got {list(x.shape)}")
        weight = self.out_proj.weight
        if x.dtype != weight.dtype and check.autocast_dtype(x.device.type) is None:
            raise ValueError(f"{name} must have the dtype of the layer, {weight.dtype}, got {x.dtype}")
        check.same_device(**{"the layer": weight, name: x})
        return x


def _with_hidden_keys(
    query: Tensor, key: Tensor, tables: dict[str, Any], hidden: Tensor
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Queries, keys and tables with two more numbers, whose product makes the weight of a hidden key exactly zero.

    A mask would have a number for each row, query and key: n³ of them. Two, because bfloat16 is multiplied in pairs.
    """
    least = hidden.to(key.dtype) * (torch.finfo(key.dtype).min / 4)
    most = least[..., None, None].expand(*key.shape[:-1], 1)
    wide = {name: _padded(table) if name in ("key_table", "query_table") else table for name, table in tables.items()}
    return pad(pad(query, (0, 1), value=1.0), (0, 1)), pad(torch.cat([key, most], -1), (0, 1)), wide


def _padded(table: Any) -> Any:
    return tuple(map(_padded, table)) if isinstance(table, tuple) else pad(table, (0, 2))


def _check_hidden(mask: Any, shape: Sequence[int], axes: str, x: Tensor) -> Tensor | None:
    """``key_padding_mask``, bool and of this shape."""
    if mask is None:
        return None
    check.tensor("key_padding_mask", mask)
    if mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True hides), got {mask.dtype}")
    if list(mask.shape) != list(shape):
        raise ValueError(f"key_padding_mask must have shape {axes} = {list(shape)}, got {list(mask.shape)}")
    check.same_device(key_padding_mask=mask, input=x)
    return mask


class TriangleAttention(_GatedAttention):
    """Attention over a pair representation: each row attends within itself, and all rows share a bias of every pair.

    z is normalized first. Around the starting node, pair (i, j) attends to the pairs (i, k) of its row, with heads of
    c numbers, a linear bias b of z, one number per head, and a gate g = σ(W_g z):

        a_ijk = softmax_k(q_ij·k_ik / √c + b_jk);  o_ij = g_ij ⊙ Σ_k a_ijk v_ik

    Around the ending node, it attends to the pairs (k, j) of its column: softmax_k(q_ij·k_kj / √c + b_ki), with values
    v_kj. The layer returns W_o o, which a model adds to z. All rows share the biases, H·N² numbers, and so do the
    gradients: nothing here has N³ numbers. Labels with ``tables`` add their terms for query j and key k of each row.

    Source: Jumper et al. 2021, supplementary algorithms 13 and 14.

    Args:
        width: C, the width of the pair representation.
        heads: H, the number of heads.
        head_dim: c, the size of a head.
        node: ``"starting"`` or ``"ending"``.
        tables: :class:`~relgraph.RelationTables` for heads of this size, or None; with tables each call needs labels.
        impl: the implementation of :func:`~relgraph.relation_attention`, or None for its rule.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: sizes below 1 or beyond any memory, an unknown node or implementation, tables that do not fit.

    Example:
        >>> layer, pair = rg.nn.TriangleAttention(16, heads=2, head_dim=8), torch.randn(1, 6, 6, 16)
        >>> pair = pair + layer(pair)
        >>> pair.shape
        torch.Size([1, 6, 6, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        node: Literal["starting", "ending"] = "starting",
        *,
        tables: RelationTables | None = None,
        impl: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_head_dim("width", width, "heads", heads, check.integer("head_dim", head_dim, minimum=1))
        super().__init__(width, width, heads, head_dim, ("gate", "output"), tables, impl, device, dtype)
        self.node = check.choice("node", node, ("starting", "ending"))

    def forward(self, pair: Tensor, *, key_padding_mask: Tensor | None = None, labels: LabelsLike = None) -> Tensor:
        """Attend within rows, or within columns.

        Args:
            pair: ``[B, N, N, C]`` or, without a batch, ``[N, N, C]``.
            key_padding_mask: bool, True for pairs that do not exist, to which no pair attends: ``[B, N, N]``, without a
                batch ``[N, N]``. A pair that may attend to none gets the bias of the output projection.
            labels: the label of every query and key of a row, which all rows share: labels of N queries and N keys, or
                ids ``[N, N]``; with ``tables`` only.

        Returns:
            The update of ``pair``, ``[B, N, N, C]`` or ``[N, N, C]``.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: shapes, dtypes or devices that do not fit; tables without labels, or labels that nothing reads.
            NotImplementedError: what the implementation does not support.
        """
        self._checked("pair", pair, self.width, ("[B, N, N, C]", "[N, N, C]"))
        z = pair if pair.dim() == 4 else pair[None]
        if z.shape[1] != z.shape[2]:
            raise ValueError(f"pair must have as many rows as columns, got {list(pair.shape)}")
        hidden = _check_hidden(key_padding_mask, pair.shape[:-1], "[B, N, N] or [N, N]", pair)
        hidden = hidden if hidden is None or pair.dim() == 4 else hidden[None]
        ending = self.node == "ending"  # the same around the starting node of the transposed pairs
        if ending:
            z, hidden = z.transpose(1, 2), None if hidden is None else hidden.transpose(1, 2)
        z = self.norm(z)
        out = self._attend(z, z, hidden, labels)
        out = out.transpose(1, 2) if ending else out
        return out if pair.dim() == 4 else out[0]

    def extra_repr(self) -> str:
        """The arguments that the submodules do not show."""
        return f"{self.width}, heads={self.heads}, head_dim={self.head_dim}, node={self.node!r}"


class PairBiasAttention(_GatedAttention):
    """Self-attention whose scores have a learned bias for every pair, from a pair representation.

    x and the pair representation z are normalized first. With heads of c numbers, a linear bias b of z, one number per
    head, and a gate g = σ(W_g x):

        a_ij = softmax_j(q_i·k_j / √c + b_ij);  o_i = g_i ⊙ Σ_j a_ij v_j

    The layer returns W_o o. With an axis of rows, as in an alignment of S sequences, each row attends within itself and
    all rows share the biases. Labels with ``tables`` add their terms.

    Source: Jumper et al. 2021, supplementary algorithm 7 (rows of an alignment; gate and output have a bias); Abramson
    et al. 2024, algorithm 24 (``bias=("query",)``; for its adaptive norm, replace ``layer.norm`` by an ``nn.Identity``
    and normalize ``x`` before).

    Args:
        width: the width of the input.
        pair_width: the width of the pair representation.
        heads: H, the number of heads.
        head_dim: c, the size of a head; by default the width shared among the heads.
        bias: which projections have a bias, of ``"query"``, ``"key"``, ``"value"``, ``"gate"`` and ``"output"``.
        tables: :class:`~relgraph.RelationTables` for heads of this size, or None; with tables each call needs labels.
        impl: the implementation of :func:`~relgraph.relation_attention`, or None for its rule.
        device: device of the parameters.
        dtype: floating type of the parameters.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: sizes below 1 or beyond any memory, heads that do not divide the width, unknown names, tables that
            do not fit.

    Example:
        >>> layer = rg.nn.PairBiasAttention(16, 8, heads=2)
        >>> x, pair = torch.randn(1, 6, 16), torch.randn(1, 6, 6, 8)
        >>> layer(x, pair).shape
        torch.Size([1, 6, 16])
        >>> layer(torch.randn(1, 3, 6, 16), pair).shape                             # 3 rows share the biases
        torch.Size([1, 3, 6, 16])
    """

    def __init__(
        self,
        width: int,
        pair_width: int,
        heads: int,
        head_dim: int | None = None,
        *,
        bias: Sequence[str] = ("gate", "output"),
        tables: RelationTables | None = None,
        impl: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        size = check_head_dim("width", width, "heads", heads, head_dim)
        check.integer("pair_width", pair_width, minimum=1)
        if isinstance(bias, str) or not isinstance(bias, (tuple, list, set, frozenset)):
            raise TypeError(f"bias must be a sequence of names of {list(_BIASED)}, got {shown(bias)}")
        for name in bias:
            check.choice("bias", name, _BIASED)
        super().__init__(width, pair_width, heads, size, bias, tables, impl, device, dtype)
        self.pair_norm = nn.LayerNorm(pair_width, **check.parameter_place(device, dtype))

    def forward(
        self, x: Tensor, pair: Tensor, *, key_padding_mask: Tensor | None = None, labels: LabelsLike = None
    ) -> Tensor:
        """Attend with the biases of the pair representation.

        Args:
            x: ``[B, N, E]``, or ``[B, S, N, E]`` with S rows that share the biases; without B if ``pair`` has none.
            pair: ``[B, N, N, C]`` or, without a batch, ``[N, N, C]``.
            key_padding_mask: bool, True for elements of ``x`` that do not exist, to which none attends: ``[B, N]`` or
                ``[B, S, N]``, without B if ``pair`` has none. An element that may attend to none gets the bias of the
                output projection.
            labels: the label of every query and key, labels of N queries and N keys, or ids ``[N, N]``; with ``tables``
                only.

        Returns:
            The update of ``x``, ``[B, N, E]`` or ``[B, S, N, E]``, without B if ``pair`` has none.

        Raises:
            TypeError: an argument of the wrong kind.
            ValueError: shapes, dtypes or devices that do not fit; tables without labels, or labels that nothing reads.
            NotImplementedError: what the implementation does not support.
        """
        self._checked("pair", pair, self.pair_width, ("[B, N, N, C]", "[N, N, C]"))
        batched = pair.dim() == 4
        shapes = ("[B, N, C]", "[B, S, N, C]") if batched else ("[N, C]", "[S, N, C]")
        self._checked("x", x, self.width, shapes)
        lead = [x.shape[0]] if batched else []
        if list(pair.shape[:-1]) != [*lead, x.shape[-2], x.shape[-2]]:
            raise ValueError(
                f"pair must have a number for each pair of x, {[*lead, x.shape[-2], x.shape[-2], self.pair_width]}, "
                f"got {list(pair.shape)}"
            )
        check.same_device(x=x, pair=pair)
        hidden = _check_hidden(key_padding_mask, x.shape[:-1], "of x without its width", x)
        given = x if batched else x[None]
        hidden = hidden if hidden is None or batched else hidden[None]
        out = self._attend(self.norm(given), self.pair_norm(pair if batched else pair[None]), hidden, labels)
        return out if batched else out[0]

    def extra_repr(self) -> str:
        """The arguments that the submodules do not show."""
        return f"{self.width}, {self.pair_width}, heads={self.heads}, head_dim={self.head_dim}"
