"""From PyG's layers, with their weights: TransformerConv and GATv2Conv to RelationConv, GPSConv's attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GPSConv, TransformerConv
from torch_geometric.nn.dense.linear import is_uninitialized_parameter

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.nn.plain import check_plain, check_plain_attention, copy_plain, zero_tables
from relgraph.nn.tables import RelationTables
from relgraph.pyg.conv import RelationConv
from relgraph.pyg.global_attention import RelationGlobalAttention
from relgraph.pyg.self_loops import SelfLoops
from relgraph.score import Additive, LeakyReLU

_PLAIN_SUMS = ("add", "sum", "mean", "max", "min", "mul")


def from_transformer_conv(
    conv: TransformerConv, *, edge_types: bool = False, names: Sequence[str] | None = None, **kwargs: Any
) -> RelationConv:
    """A :class:`~relgraph.pyg.RelationConv` with the output of ``conv``, and copies of its weights.

    TransformerConv projects one-hot types: column r of its projection is row r of a table here.

    Source: Shi et al. 2021, :class:`~torch_geometric.nn.conv.TransformerConv`.

    Args:
        conv: the layer; a lazy one after its first call.
        edge_types: whether ``conv`` reads edge types as one-hot ``edge_attr``. If so, the columns of its projection
            become the rows of a table that keys and values share, and the new layer takes ``edge_type``; if not, it
            takes ``edge_attr`` as before.
        names: the names of the types, saved with the table; only with ``edge_types``.
        kwargs: further options of :class:`~relgraph.pyg.RelationConv`, such as ``impl``.

    Returns:
        The new layer, with the device, dtype and training mode of ``conv``.

    Raises:
        ValueError: a lazy layer before its first call, ``edge_types`` of a layer without ``edge_dim``, or an ``aggr``
            that may hold weights.
        NotImplementedError: ``decomposed_layers`` other than 1.

    Example:
        >>> from torch_geometric.nn import TransformerConv
        >>> theirs = TransformerConv(4, 8, heads=2, edge_dim=3)
        >>> ours = rg.pyg.from_transformer_conv(theirs, edge_types=True)
        >>> x, edge_index, edge_type = torch.randn(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.tensor([2, 0])
        >>> one_hot = torch.nn.functional.one_hot(edge_type, 3).float()
        >>> torch.allclose(ours(x, edge_index, edge_type), theirs(x, edge_index, one_hot), atol=1e-5)
        True
    """
    if not isinstance(conv, TransformerConv):
        raise TypeError(f"conv must be a TransformerConv, got {type(conv).__name__}")
    tables = _tables_of(conv, edge_types, names, ("key", "value"))
    weight = conv.lin_query.weight
    made = RelationConv(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, conv.beta, conv.dropout,
        None if edge_types else conv.edge_dim, conv.lin_query.bias is not None, conv.root_weight,
        tables=tables, tie_projections=("edge",), flow=conv.flow, aggr=conv.aggr,
        decomposed_layers=conv.decomposed_layers, **kwargs,
    ).to(weight.device, weight.dtype)  # fmt: skip
    same = ("lin_key", "lin_query", "lin_value", "lin_skip", "lin_beta", "lin_edge")
    return _with_weights(made, conv, {name: name for name in same}, edge_types)


def from_gatv2_conv(  # noqa: D417
    conv: GATv2Conv, *, edge_types: bool = False, names: Sequence[str] | None = None, **kwargs: Any
) -> RelationConv:
    """A :class:`~relgraph.pyg.RelationConv` with the output of ``conv``, and copies of its weights.

    In GATv2 the values are the projected keys, edge features enter the score only, and the score is additive:
    a · LeakyReLU(W_r x_i + W_l x_j + U f_e). The new layer trains as ``conv`` does, because it shares the same weights
    among its terms.

    Source: Brody, Alon, Yahav 2022, :class:`~torch_geometric.nn.conv.GATv2Conv`.

    Args:
        conv: the layer; a lazy one after its first call.
        edge_types: this and all further arguments as in :func:`~relgraph.pyg.from_transformer_conv`, but the columns
            become rows of a key table, and self-loops that ``conv`` adds must have ``fill_value=0``, that is, no type.

    Returns:
        The new layer, with the device, dtype and training mode of ``conv``.

    Raises:
        ValueError: as in :func:`~relgraph.pyg.from_transformer_conv`, or a negative slope below 0.
        NotImplementedError: ``decomposed_layers`` other than 1; ``edge_types`` of a layer whose self-loops are not
            filled with 0.

    Example:
        >>> from torch_geometric.nn import GATv2Conv
        >>> theirs = GATv2Conv(4, 8, heads=2, edge_dim=3)
        >>> ours = rg.pyg.from_gatv2_conv(theirs)
        >>> x, edge_index, edge_attr = torch.randn(3, 4), torch.tensor([[0, 1], [2, 2]]), torch.randn(2, 3)
        >>> torch.allclose(ours(x, edge_index, edge_attr=edge_attr), theirs(x, edge_index, edge_attr), atol=1e-5)
        True
    """
    if not isinstance(conv, GATv2Conv):
        raise TypeError(f"conv must be a GATv2Conv, got {type(conv).__name__}")
    tables = _tables_of(conv, edge_types, names, ("key",))
    fill = 1.0 if conv.fill_value is None else conv.fill_value
    if edge_types and conv.add_self_loops and (isinstance(fill, (str, torch.Tensor)) or fill != 0.0):
        raise NotImplementedError(
            f"edge_types needs a layer with add_self_loops=False or fill_value=0, got fill_value={fill!r}: "
            "such a self-loop is not of one type"
        )
    slope = conv.negative_slope
    activation = "leaky_relu" if slope == 0.2 else LeakyReLU(slope)
    attention = conv.att.detach()[0].clone()  # [H, C]
    loops = conv.add_self_loops and SelfLoops("mean" if edge_types or conv.edge_dim is None else fill)
    tied = ("value", "query") if conv.share_weights else ("value",)
    made = RelationConv(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, False, conv.dropout,
        None if edge_types else conv.edge_dim, conv.lin_l.bias is not None, conv.residual, tables=tables,
        score=Additive(torch.nn.Parameter(attention), activation), tie_projections=tied, edge_terms=("key",),
        out_bias=conv.bias is not None and not conv.residual, add_self_loops=loops, flow=conv.flow, aggr=conv.aggr,
        decomposed_layers=conv.decomposed_layers, **kwargs,
    ).to(attention.device, attention.dtype)  # fmt: skip
    with torch.no_grad():
        if made.lin_skip is not None:
            assert conv.res is not None
            made.lin_skip.weight.copy_(conv.res.weight)
            if conv.bias is not None:
                made.lin_skip.bias.copy_(conv.bias)
        if made.out_bias is not None:
            assert conv.bias is not None
            made.out_bias.copy_(conv.bias)
    return _with_weights(made, conv, {"lin_key": "lin_l", "lin_query": "lin_r", "lin_edge": "lin_edge"}, edge_types)


def from_gps_conv(
    conv: GPSConv, *, new_tables: Literal["zero", "random"] = "zero", **kwargs: Any
) -> RelationGlobalAttention:
    """The global attention of ``conv`` as a :class:`~relgraph.pyg.RelationGlobalAttention`, with copies of its weights.

    GPSConv pads the graphs of a batch, and every node attends over all nodes of its graph. The new layer does the same
    without padding, and its pairs may have labels. The local layer, the norms and the feed-forward network of ``conv``
    are not part of it.

    Source: Rampášek et al. 2022, :class:`~torch_geometric.nn.conv.GPSConv`.

    Args:
        conv: the layer.
        new_tables: how the rows of tables begin, as in :meth:`~relgraph.RelationAttention.from_plain`: with ``"zero"``
            the output is that of ``conv`` until training moves them.
        kwargs: further options of :class:`~relgraph.pyg.RelationGlobalAttention`, such as ``labeler``.

    Returns:
        The new layer, with the device, dtype and training mode of ``conv``.

    Raises:
        ValueError: unknown ``new_tables``, or an error of :class:`~relgraph.pyg.RelationGlobalAttention`.
        NotImplementedError: ``attn_type="performer"``, whose attention has no scores of pairs; an attention with
            ``add_bias_kv`` or ``add_zero_attn``.

    Example:
        >>> from torch_geometric.nn import GPSConv
        >>> theirs = GPSConv(8, conv=None, heads=2, norm=None)
        >>> ours = rg.pyg.from_gps_conv(theirs, labeler=rg.ShortestPath(3))
        >>> graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> x = torch.randn(3, 8)
        >>> h = x + ours(x, graph)
        >>> torch.allclose(h + theirs.mlp(h), theirs(x, graph.edge_index), atol=1e-5)
        True
    """
    if not isinstance(conv, GPSConv):
        raise TypeError(f"conv must be a GPSConv, got {type(conv).__name__}")
    attention: Any = conv.attn
    if conv.attn_type != "multihead":
        raise NotImplementedError(
            f"conv must have attn_type='multihead', got {conv.attn_type!r}: without scores of pairs there is no place "
            "for labels"
        )
    check_plain("conv.attn", attention, nn.MultiheadAttention, new_tables)
    check_plain_attention("conv.attn", attention)
    weight = attention.out_proj.weight
    made = RelationGlobalAttention(
        conv.channels, conv.heads, attention.dropout, attention.in_proj_bias is not None, **kwargs
    ).to(weight.device, weight.dtype)
    copy_plain("conv.attn", made.attention, attention)
    if new_tables == "zero":
        zero_tables(made, kwargs.get("tables"))
    return made.train(conv.training)


def _tables_of(
    conv: TransformerConv | GATv2Conv, edge_types: bool, names: Sequence[str] | None, kinds: tuple[str, ...]
) -> RelationTables | tuple[str, ...]:
    """Tables for the edge types of ``conv``; raise unless its weights are initialized and a RelationConv fits them."""
    check.boolean("edge_types", edge_types)
    if any(is_uninitialized_parameter(parameter) for parameter in conv.parameters()):
        raise ValueError("conv must know its sizes: call it once before, got uninitialized parameters")
    if edge_types and conv.edge_dim is None:
        raise ValueError("edge_types needs a layer with edge_dim, the number of types, got edge_dim=None")
    if conv.aggr not in _PLAIN_SUMS:
        raise ValueError(f"conv must have an aggr without weights, one of {list(_PLAIN_SUMS)}, got {conv.aggr!r}")
    if not edge_types:
        if names is not None:
            raise ValueError(f"names must be left out without edge_types, got {shown(names)}")
        return kinds
    options = {"kinds": kinds, "per_head": True, "tied": "value" in kinds, "names": names, "shared": False}
    return RelationTables(conv.edge_dim, conv.out_channels, conv.heads, **options)


def _with_weights(
    made: RelationConv, conv: TransformerConv | GATv2Conv, theirs: dict[str, str], edge_types: bool
) -> RelationConv:
    """The new layer with the projections of ``conv``, named by ``theirs``; those of one-hot types become key rows."""
    for name, their in theirs.items():
        if getattr(made, name) is not None:
            getattr(made, name).load_state_dict(getattr(conv, their).state_dict())
    if edge_types:
        assert conv.lin_edge is not None
        columns = conv.lin_edge.weight.detach().unflatten(0, (conv.heads, conv.out_channels))
        with torch.no_grad():
            made.tables.key.rows.copy_(columns.transpose(1, 2))
    return made.train(conv.training)
