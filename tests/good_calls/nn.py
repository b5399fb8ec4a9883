"""Good calls of ``relgraph.nn``: tables, layers, stacks, positions, caches and the recorder."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import relgraph as rg
from tests.judge import Good

PLACE = {"device": torch.device("cpu"), "dtype": torch.float32}
LABELER = rg.ClippedDistance(1)
LISTED = rg.EdgeLabels(torch.tensor([[0, 2], [1, 0]]), torch.tensor([-1, -1]), 0, q_len=3)
STATES = {"edge_dim": 3, "heads": 2, "head_dim": 4}

NAMED = {"names": ("first entry: text", "first entry: first entry: text")}
"""A word is a good name of a label."""

SUMMED = {"num_labels": ("list",)}
"""A list of numbers is for a sum of labels."""

SWITCHED = {"value_map": ("one",)}
"""One base is a good number of bases."""

# Sizes that must fit each other are told by the name of either.
SIZES = {"d_model": ("nhead",), "nhead": ("d_model",), "num_heads": ("embed_dim",), "embed_dim": ("num_heads",)}


def _torchs() -> dict:
    """The arguments that torch's Transformer layers have too."""
    return {
        "d_model": 8,
        "nhead": 2,
        "dim_feedforward": 16,
        "dropout": 0.1,
        "activation": "relu",
        "layer_norm_eps": 1e-5,
        "batch_first": True,
        "norm_first": False,
        "bias": True,
        **PLACE,
    }


def _attention(**options) -> Good:
    arguments = {
        "embed_dim": 8,
        "num_heads": 2,
        "dropout": 0.1,
        "bias": True,
        "num_labels": 3,
        "kdim": 6,
        "vdim": 5,
        "num_kv_heads": 1,
        "head_dim": 3,
        "scale": 0.5,
        "tables": ("key", "value"),
        "score": rg.score.Softcap(2.0),
        "content_bias": True,
        "position_bias": True,
        "sink": True,
        "value_map": False,
        "key_gate": True,
        "value_gate": True,
        "impl": "dense",
        **PLACE,
        **options,
    }
    also = {**SIZES, "num_labels": ("position_bias", "key_gate"), "tables": ("position_bias",)}
    return Good(rg.RelationAttention, arguments, also, {**SWITCHED, **SUMMED})


@cache
def _layers() -> dict[str, nn.Module]:
    """Layers that several calls share; none of these changes them."""
    torch.manual_seed(0)
    encoder = rg.RelationEncoderLayer(8, 2, 16, labeler=LABELER).eval()
    decoder = rg.RelationDecoderLayer(
        8, 2, 16, labeler=LABELER, cross_attention=rg.RelationAttention(8, 2, num_labels=3)
    ).eval()
    bank = rg.RelationTables(None, 4, banks={kind: nn.Linear(3, 4) for kind in ("key", "value")})
    return {
        "attention": rg.RelationAttention(8, 2, num_labels=3, kdim=6, vdim=5).eval(),
        "bank": rg.RelationAttention(8, 2, tables=bank).eval(),
        "encoder": encoder,
        "before": rg.RelationEncoderLayer(8, 2, 16, num_labels=3, norm_first=True).eval(),
        "decoder": decoder,
        "encoders": rg.RelationEncoder(encoder, 2, nn.LayerNorm(8)).eval(),
        "decoders": rg.RelationDecoder(decoder, 2).eval(),
        "transformer": rg.RelationTransformer(
            8, 2, 1, 1, 16, labeler=rg.ClippedDistance(2), positions="sinusoidal"
        ).eval(),
        "graphs in": rg.RelationTransformer(
            8,
            2,
            1,
            1,
            16,
            positions=(None, rg.nn.LearnedPositions(8, 5)),
            labeler=rg.ShortestPath(1),
            target_labeler=LABELER,
            memory_labeler=LABELER,
        ).eval(),
    }


def _plain() -> nn.Transformer:
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


def _rows(length: int = 3, width: int = 8) -> Tensor:
    return torch.randn(2, length, width)


def _blocked(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bool)


def _layer_with_edge_states() -> rg.RelationEncoderLayer:
    attention = rg.RelationAttention(8, 2, edge_dim=2, edge_update="relational")
    return rg.RelationEncoderLayer(8, 2, 16, attention=attention)


def _edges(keys: int = 3) -> rg.EdgeLabels:
    return rg.EdgeLabels(torch.tensor([[0, 2], [1, 0]]), torch.tensor([0, 1]), 3, q_len=3, k_len=keys, default=2)


def _attend(**options) -> Good:
    arguments = {
        "query": _rows(),
        "key": _rows(4, 6),
        "value": _rows(4, 5),
        "labels": LABELER(3, 4),
        "key_padding_mask": _blocked(2, 4),
        "attn_mask": torch.zeros(3, 4),
        "is_causal": False,
        "q_offset": 0,
        "need_weights": True,
        "average_attn_weights": True,
        "need_label_mass": True,
        **options,
    }
    inputs = ("query", "key", "value", "labels", "attn_mask", "key_padding_mask")
    return Good(_layers()["attention"], arguments, dict.fromkeys(("query", "key", "value", "labels"), inputs))


def _asked() -> dict:
    return {name: value for name, value in _attend().arguments.items() if name != "average_attn_weights"}


def _growing(layer: str, name: str, cache, **options) -> Good:
    """A call that fills a cache, which is new for every call."""

    def call(**given):
        return _layers()[layer](**{"cache": cache(), **options, **given})

    return Good(call, {name: _rows(), "cache": cache()}, also={name: ("cache", "labels")})


def _encode(layer: str, mask: str) -> Good:
    arguments = {
        "src": _rows(),
        mask: torch.zeros(3, 3),
        "src_key_padding_mask": _blocked(2, 3),
        "is_causal": False,
        "labels": LABELER(3),
    }
    return Good(_layers()[layer], arguments, also={"src": (mask, "src_key_padding_mask", "labels")})


rg.nn.LabelTable(3, 4, device="meta")  # torch loads what it needs for that on first use, which takes a second

DECODED = {"tgt_mask": (3, 3), "memory_mask": (3, 4), "tgt_key_padding_mask": (2, 3), "memory_key_padding_mask": (2, 4)}
LATER = torch.ones(3, 3, dtype=torch.bool).triu(1)
ALSO_DECODED = {"tgt": ("memory", "labels", "memory_labels", *DECODED), "memory": ("tgt", "memory_labels", *DECODED)}


def _decode(layer: str) -> Good:
    arguments = {
        "tgt": _rows(),
        "memory": _rows(4),
        **{name: _blocked(*shape) for name, shape in DECODED.items()},
        "tgt_mask": LATER,
        "tgt_is_causal": True,
        "memory_is_causal": False,
        "labels": LABELER(3),
        "memory_labels": LABELER(3, 4, q_offset=0),
    }
    return Good(_layers()[layer], arguments, ALSO_DECODED)


def _transform() -> Good:
    masks = {"src_mask": (4, 4), "src_key_padding_mask": (2, 4), **DECODED}
    flags = {"src_is_causal": False, "tgt_is_causal": True, "memory_is_causal": False}
    arguments = {"src": _rows(4), "tgt": _rows(), **{name: _blocked(*shape) for name, shape in masks.items()}, **flags}
    arguments["tgt_mask"] = LATER
    also = {"src": ("tgt", "memory", *masks), "tgt": ("memory", *masks)}
    return Good(_layers()["transformer"], arguments, also)


GRAPHS = rg.Graph(torch.tensor([[0, 3], [1, 2]]), 5, ptr=torch.tensor([0, 2, 5]))
"""Two graphs, of 2 and 3 nodes."""


def _transform_graphs() -> Good:
    arguments = {
        "src": torch.randn(5, 8),
        "tgt": _rows(),
        "src_mask": _blocked(5, 5),
        "memory_mask": _blocked(3, 3),
        "src_key_padding_mask": _blocked(5),
        "memory_key_padding_mask": _blocked(5),
        "src_labels": rg.ShortestPath(1)(GRAPHS),
        "tgt_labels": LABELER(3),
        "memory_labels": LABELER(3, 3),
    }
    also = {
        "src": ("src_labels", "src_mask", "src_key_padding_mask"),
        "tgt": ("src_labels", "tgt_labels", "memory_labels", "memory_mask"),
        "src_labels": ("src",),
    }
    return Good(_layers()["graphs in"], arguments, also)


def _decode_graphs() -> Good:
    arguments = {
        "tgt": _rows(),
        "memory": torch.randn(5, 8),
        "memory_mask": _blocked(3, 3),
        "memory_key_padding_mask": _blocked(5),
        "tgt_labels": LABELER(3),
        "memory_labels": LABELER(3, 3),
        "memory_ptr": GRAPHS.ptr,
    }
    also = {
        "tgt": ("memory_ptr", "tgt_labels", "memory_labels", "memory_mask"),
        "memory": ("memory_ptr", "memory_labels", "memory_mask", "memory_key_padding_mask"),
    }
    return Good(_layers()["graphs in"].decode, arguments, also)


def _filled(kind=rg.KVCache):
    cache = rg.KVCache()
    cache._append(torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 4), None)
    if kind is rg.KVCache:
        return cache
    layer = rg.nn.LayerCache()
    layer.self_attn = layer.multihead_attn = cache
    return layer if kind is rg.nn.LayerCache else rg.nn.StackCache(layer)


def _reorder(kind) -> Good:
    return Good(lambda index: _filled(kind).reorder(index), {"index": torch.tensor([1, 0])})


def _table() -> rg.nn.LabelTable:
    return rg.nn.LabelTable(3, 4, names=["a", "b", "c"])


GOOD_CALLS = {
    # --- Tables
    "LabelTable": lambda: Good(
        rg.nn.LabelTable,
        {"num_labels": 3, "dim": 4, "heads": 2, "names": ["a", "b", "c"], "frozen": 1, **PLACE},
        also={"num_labels": ("names", "frozen")},
        accepts=NAMED,
    ),
    "LabelTable.forward": lambda: Good(_table(), {"features": None}),
    "check_label_names": lambda: Good(
        rg.nn.check_label_names,
        {"model": _table(), "state_dict": {"_extra_state": _table().get_extra_state()}, "prefix": ""},
        also={"state_dict": ("_extra_state", "names")},
        accepts={"prefix": ("text",)},
    ),
    "LabelTable.set_extra_state": lambda: Good(_table().set_extra_state, {"state": _table().get_extra_state()}),
    "RelationTables": lambda: Good(
        rg.RelationTables,
        {
            "num_labels": 3,
            "dim": 4,
            "heads": 2,
            "kinds": ("key", "value"),
            "per_head": True,
            "tied": True,
            "names": ["a", "b", "c"],
            "frozen": 1,
            **PLACE,
        },
        also={"num_labels": ("names", "frozen"), "kinds": ("tied",)},
        accepts=NAMED,
    ),
    "RelationTables (a sum)": lambda: Good(
        rg.RelationTables,
        {
            "num_labels": (3, None),
            "dim": 4,
            "kinds": ["key"],
            "per_head": ["key"],
            "heads": 2,
            "names": (["a", "b", "c"], None),
            "frozen": (1, None),
            "banks": (None, {"key": nn.Linear(3, 4)}),
        },
        also={"num_labels": ("names", "frozen", "banks"), "banks": ("bank",), "kinds": ("per_head", "banks")},
        accepts=NAMED,
    ),
    "RelationTables.forward": lambda: Good(rg.RelationTables((3, 2), 4), {"features": None}),
    # --- Attention
    "RelationAttention": _attention,
    "RelationAttention (bases)": lambda: Good(
        rg.RelationAttention,
        {
            "embed_dim": 8,
            "num_heads": 2,
            "num_labels": 3,
            "tables": ("key",),
            "score": rg.score.Bilinear.learned(3, 2, 4),
            "value_map": 2,
        },
        also={**SIZES, "embed_dim": ("score",), "num_heads": ("embed_dim", "score"), "num_labels": ("score",)},
        accepts={"value_map": ("true",)},
    ),
    "RelationAttention (a labeler)": lambda: Good(
        rg.RelationAttention,
        {"embed_dim": 8, "num_heads": 2, "labeler": LABELER, "rotary": rg.RotaryPositions(4)},
        also={**SIZES, "embed_dim": ("rotary",), "num_heads": ("rotary",)},
    ),
    "RelationAttention (features of edges)": lambda: Good(
        rg.RelationAttention, {"embed_dim": 8, "num_heads": 2, "edge_dim": 3}, also=SIZES
    ),
    "RelationAttention (edge states)": lambda: Good(
        rg.RelationAttention, {"embed_dim": 8, "num_heads": 2, "edge_dim": 3, "edge_update": "relational"}, also=SIZES
    ),
    "RelationAttention.from_plain": lambda: Good(
        rg.RelationAttention.from_plain, {"attention": nn.MultiheadAttention(8, 2, batch_first=True), "tables": ()}
    ),
    "RelationAttention.forward": _attend,
    "RelationAttention.forward (a labeler)": lambda: Good(
        rg.RelationAttention(8, 2, labeler=rg.Segments(3)),
        {"query": _rows(), "labels": torch.zeros(2, 3, dtype=torch.int64)},
        also={"query": ("labels",), "labels": ("segments",)},
    ),
    "RelationAttention.which_impl": lambda: Good(
        _layers()["attention"].which_impl, _asked(), _attend().also, {"need_weights": ()}
    ),
    "RelationAttention.forward (scores by row)": lambda: Good(
        rg.RelationAttention(8, 2, num_labels=3, tables=("bias",), score=rg.score.LeakyReLU(), value_map=True),
        {"query": _rows(), "labels": LABELER(3), "row_scores": torch.randn(2, 2, 3, 3)},
        also={"query": ("labels", "row_scores")},
    ),
    "RelationAttention.forward (features of edges)": lambda: Good(
        rg.RelationAttention(8, 2, num_labels=3, edge_dim=2),
        {"query": _rows(), "labels": _edges(), "edge_attr": torch.randn(2, 2)},
        also={"query": ("labels",), "labels": ("edge_attr",), "edge_attr": ("labels",)},
    ),
    "RelationAttention.forward (edge states)": lambda: Good(
        rg.RelationAttention(8, 2, edge_dim=2, edge_update="relational"),
        {"query": _rows()[0], "labels": LISTED, "edge_attr": torch.randn(2, 2)},
        also={"query": ("labels",), "labels": ("edge_attr",), "edge_attr": ("labels",)},
    ),
    "RelationEncoder.forward (edge states)": lambda: Good(
        rg.RelationEncoder(_layer_with_edge_states(), 2),
        {"src": _rows()[0], "labels": LISTED, "edge_attr": torch.randn(2, 2)},
        also={"src": ("labels",), "labels": ("edge_attr",), "edge_attr": ("labels",)},
    ),
    "RelationEncoderLayer.forward (edge states)": lambda: Good(
        _layer_with_edge_states(),
        {"src": _rows()[0], "labels": LISTED, "edge_attr": torch.randn(2, 2)},
        also={"src": ("labels",), "labels": ("edge_attr",), "edge_attr": ("labels",)},
    ),
    "RelationalEdges": lambda: Good(rg.nn.RelationalEdges, {**STATES, "width": 9, "hidden": 5, **PLACE}),
    "RelationAttention.forward (positions)": lambda: Good(
        rg.RelationAttention(8, 2, labeler=LABELER, rotary=rg.RotaryPositions(4)),
        {"query": _rows(), "positions": torch.tensor([0, 4, 5])},
        also={"query": ("positions",), "positions": ("query",)},
    ),
    "RelationAttention.forward (a cache)": lambda: _growing(
        "bank", "query", rg.KVCache, bank_features=torch.randn(3, 3), labels=LABELER(3), is_causal=True
    ),
    "RelationAttention.forward (labels of the whole)": lambda: Good(
        lambda labels: _layers()["before"].self_attn(_rows(), labels=labels, is_causal=True, cache=rg.KVCache()),
        {"labels": LABELER(5)},
    ),
    # --- Layers
    "RelationEncoderLayer": lambda: Good(
        rg.RelationEncoderLayer,
        {**_torchs(), "num_labels": 3, "tables": ("key", "value"), "impl": "dense"},
        also=SIZES,
        accepts=SUMMED,
    ),
    "RelationEncoderLayer (an attention)": lambda: Good(
        rg.RelationEncoderLayer,
        {"d_model": 8, "nhead": 2, "attention": rg.RelationAttention(8, 2, labeler=LABELER)},
        also={"d_model": ("nhead", "attention"), "nhead": ("d_model", "attention")},
    ),
    "RelationEncoderLayer.from_plain": lambda: Good(
        rg.RelationEncoderLayer.from_plain,
        {"layer": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), "tables": ()},
    ),
    "RelationEncoderLayer.forward": lambda: _encode("encoder", "src_mask"),
    "RelationDecoderLayer": lambda: Good(
        rg.RelationDecoderLayer, {**_torchs(), "num_labels": 3, "tables": ("key", "value")}, also=SIZES, accepts=SUMMED
    ),
    "RelationDecoderLayer (attentions)": lambda: Good(
        rg.RelationDecoderLayer,
        {
            "d_model": 8,
            "nhead": 2,
            "self_attention": rg.RelationAttention(8, 2, labeler=LABELER),
            "cross_attention": rg.RelationAttention(8, 2, num_labels=3),
        },
        also={"d_model": ("nhead", "self_attention"), "nhead": ("d_model", "self_attention")},
    ),
    "RelationDecoderLayer.from_plain": lambda: Good(
        rg.RelationDecoderLayer.from_plain,
        {"layer": nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), "tables": ()},
    ),
    "RelationDecoderLayer.forward": lambda: _decode("decoder"),
    "RelationDecoderLayer.forward (a packed memory)": lambda: Good(
        _layers()["decoder"],
        {
            "tgt": _rows(),
            "memory": torch.randn(5, 8),
            "memory_key_padding_mask": _blocked(5),
            "labels": LABELER(3),
            "memory_labels": LABELER(6, 5, ptr=GRAPHS.ptr, q_ptr=torch.tensor([0, 3, 6])),
        },
        also={
            "tgt": ("labels", "memory_labels"),
            "memory": ("tgt", "memory_labels", "memory_key_padding_mask"),
            "memory_labels": ("tgt", "memory", "memory_key_padding_mask"),
        },
    ),
    "RelationDecoderLayer.forward (a cache)": lambda: _growing(
        "decoder", "tgt", rg.nn.LayerCache, memory=_rows(4), memory_labels=LABELER(3, 4)
    ),
    # --- Stacks
    "RelationEncoder": lambda: Good(
        rg.RelationEncoder,
        {"layer": rg.RelationEncoderLayer(8, 2, 16, tables=()), "num_layers": 2, "norm": nn.LayerNorm(8)},
    ),
    "RelationEncoder.from_plain": lambda: Good(
        rg.RelationEncoder.from_plain, {"stack": _plain().encoder, "new_tables": "zero", "tables": ()}
    ),
    "RelationEncoder.new_cache": lambda: Good(_layers()["encoders"].new_cache, {"max_len": 4}),
    "RelationEncoder.forward": lambda: _encode("encoders", "mask"),
    "RelationDecoder": lambda: Good(
        rg.RelationDecoder,
        {"layer": rg.RelationDecoderLayer(8, 2, 16, tables=()), "num_layers": 2, "norm": nn.LayerNorm(8)},
    ),
    "RelationDecoder.from_plain": lambda: Good(
        rg.RelationDecoder.from_plain, {"stack": _plain().decoder, "new_tables": "zero", "tables": ()}
    ),
    "RelationDecoder.new_cache": lambda: Good(_layers()["decoders"].new_cache, {"max_len": 4}),
    "RelationDecoder.forward": lambda: _decode("decoders"),
    "RelationTransformer": lambda: Good(
        rg.RelationTransformer,
        {
            "d_model": 8,
            "nhead": 2,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dim_feedforward": 16,
            "dropout": 0.1,
            "activation": "relu",
            "norm_first": False,
            "labeler": rg.ShortestPath(1),
            "memory_labeler": LABELER,
            "target_labeler": LABELER,
            "positions": (None, rg.nn.LearnedPositions(8, 5)),
            **PLACE,
        },
        {**SIZES, "d_model": ("nhead", "positions")},
    ),
    "RelationTransformer (encoder and decoder)": lambda: Good(
        rg.RelationTransformer,
        {
            "d_model": 8,
            "nhead": 2,
            "custom_encoder": rg.RelationEncoder(rg.RelationEncoderLayer(8, 2, 16, tables=()), 2),
            "custom_decoder": rg.RelationDecoder(rg.RelationDecoderLayer(8, 2, 16, tables=()), 2),
            "positions": "sinusoidal",
        },
        {"d_model": ("nhead", "custom_encoder", "positions"), "nhead": ("d_model", "custom_encoder")},
    ),
    "RelationTransformer.from_plain": lambda: Good(
        rg.RelationTransformer.from_plain,
        {"model": _plain(), "labeler": LABELER, "memory_labeler": LABELER, "target_labeler": LABELER},
    ),
    "RelationTransformer.new_cache": lambda: Good(_layers()["transformer"].new_cache, {"max_len": 4}),
    "RelationTransformer.forward": _transform,
    "RelationTransformer.forward (graphs)": _transform_graphs,
    "RelationTransformer.encode": lambda: Good(
        _layers()["transformer"].encode,
        {"src": _rows(), "src_mask": _blocked(3, 3), "src_key_padding_mask": _blocked(2, 3), "src_is_causal": False},
        also={"src": ("src_mask", "src_key_padding_mask")},
    ),
    "RelationTransformer.encode (graphs)": lambda: Good(
        _layers()["graphs in"].encode,
        {"src": torch.randn(5, 8), "src_labels": GRAPHS},
        also={"src": ("src_labels",), "src_labels": ("graph",)},
    ),
    "RelationTransformer.decode (graphs)": _decode_graphs,
    "RelationTransformer.decode": lambda: Good(
        _layers()["transformer"].decode,
        {
            "tgt": _rows(),
            "memory": _rows(4),
            **{name: _blocked(*shape) for name, shape in DECODED.items()},
            "tgt_mask": LATER,
            "tgt_is_causal": True,
            "memory_is_causal": False,
        },
        ALSO_DECODED,
    ),
    "RelationTransformer.decode (a cache)": lambda: Good(
        lambda **given: _layers()["transformer"].decode(**{"memory": _rows(4), **given}),
        {"tgt": _rows(), "cache": _layers()["transformer"].new_cache()},
        also={"tgt": ("cache", "memory")},
    ),
    # --- Positions
    "SinusoidalPositions": lambda: Good(
        rg.SinusoidalPositions, {"d_model": 8, "dropout": 0.1, "sampler": rg.nn.ShiftedPositions(3)}
    ),
    "SinusoidalPositions.forward": lambda: Good(
        rg.SinusoidalPositions(8), {"x": _rows(), "offset": torch.tensor([0, 1])}, also={"x": ("offset",)}
    ),
    "SinusoidalPositions.encode": lambda: Good(rg.SinusoidalPositions(8).encode, {"positions": torch.rand(2, 3)}),
    "alibi_tables": lambda: Good(rg.nn.alibi_tables, {"labeler": rg.ClippedDistance(3), "dim": 4, "heads": 2, **PLACE}),
    "RandomPositions": lambda: Good(rg.nn.RandomPositions, {"longest": 9}),
    "RandomPositions.forward": lambda: Good(rg.nn.RandomPositions(9), {"x": _rows()}),
    "ShiftedPositions": lambda: Good(rg.nn.ShiftedPositions, {"most": 9}),
    "ShiftedPositions.forward": lambda: Good(rg.nn.ShiftedPositions(9), {"x": _rows()}),
    "RotaryPositions": lambda: Good(rg.RotaryPositions, {"head_dim": 8, "base": 100.0, "layout": "interleaved"}),
    "RotaryPositions.forward": lambda: Good(
        rg.RotaryPositions(4),
        {"x": torch.randn(2, 3, 5, 4), "positions": torch.arange(5)},
        also={"x": ("positions",), "positions": ("x",)},
    ),
    "LearnedPositions": lambda: Good(
        rg.nn.LearnedPositions, {"d_model": 8, "max_len": 5, "dropout": 0.1, **PLACE}, also={"d_model": ("max_len",)}
    ),
    "LearnedPositions.forward": lambda: Good(
        rg.nn.LearnedPositions(8, 5),
        {"x": _rows(), "offset": torch.tensor([0, 1])},
        also={"x": ("offset",), "offset": ("x",)},
    ),
    "LearnedPositions.encode": lambda: Good(rg.nn.LearnedPositions(8, 5).encode, {"positions": torch.tensor([[0, 4]])}),
    # --- Caches
    "KVCache": lambda: Good(rg.KVCache, {"max_len": 4, "static": False}),
    "KVCache.reorder": lambda: _reorder(rg.KVCache),
    "LayerCache": lambda: Good(rg.nn.LayerCache, {"max_len": 4}),
    "LayerCache.reorder": lambda: _reorder(rg.nn.LayerCache),
    "StackCache": lambda: Good(lambda layers: rg.nn.StackCache(layers), {"layers": rg.KVCache()}),
    "StackCache.reorder": lambda: _reorder(rg.nn.StackCache),
    "record_attention": lambda: Good(
        rg.record_attention, {"model": _layers()["encoder"], "label_mass": True, "weights": True}
    ),
}
