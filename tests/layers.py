"""Layers from flat options: each option goes to the module that has it, tables, attention or layer."""

from __future__ import annotations

from torch import nn

import relgraph as rg

_OF_TABLES = {"per_head": "per_head", "tie_tables": "tied", "names": "names", "frozen": "frozen"}
_OF_ATTENTION = (
    "num_kv_heads",
    "head_dim",
    "scale",
    "score",
    "content_bias",
    "position_bias",
    "sink",
    "value_map",
    "key_gate",
    "value_gate",
)
_DISTANCES = rg.ClippedDistance(16)
_OF_BOTH = ("num_kv_heads", "head_dim", "scale", "attention_bias", "impl")


def attention_layer(embed_dim, num_heads, *args, **options):
    """An attention; ``per_head``, ``tie_tables``, ``names`` and ``frozen`` are those of its tables."""
    own = {_OF_TABLES[name]: options.pop(name) for name in [*options] if name in _OF_TABLES}
    labeler, kinds = options.get("labeler"), options.get("tables", ("key", "value"))
    if own and not isinstance(kinds, rg.RelationTables):
        own = {"names": None if labeler is None else labeler.names, **own}
        num_labels = options.pop("num_labels", None) if labeler is None else labeler.num_labels
        dim = options.get("head_dim") or embed_dim // num_heads
        place = {name: options[name] for name in ("device", "dtype") if name in options}
        options["tables"] = rg.RelationTables(num_labels, dim, num_heads, kinds=kinds, shared=False, **own, **place)
    return rg.RelationAttention(embed_dim, num_heads, *args, **_asked(options))


def encoder_layer(d_model, nhead, dim_feedforward=2048, dropout=0.1, *args, **options):
    """An encoder layer with an attention of its own if an option is the attention's only."""
    taken = _taken(options, (*_OF_ATTENTION, *_OF_TABLES, "attention_bias"))
    if taken:
        taken |= _taken(options, ("labeler", "num_labels", "tables", "impl"))
        options["attention"] = _attention(d_model, nhead, dropout, taken, options)
    options = options if "attention" in options else _asked(options)
    return rg.RelationEncoderLayer(d_model, nhead, dim_feedforward, dropout, *args, **options)


def decoder_layer(d_model, nhead, dim_feedforward=2048, dropout=0.1, *args, **options):
    """A decoder layer; options that begin with ``memory_``, and ``num_memory_labels``, are for its second attention."""
    both = _taken(options, _OF_BOTH)
    taken = _taken(options, (*_OF_ATTENTION, *_OF_TABLES)) | both
    memory = {name.removeprefix("memory_"): options.pop(name) for name in [*options] if name.startswith("memory_")}
    if "num_memory_labels" in options:
        memory["num_labels"] = options.pop("num_memory_labels")
    if memory or both:
        options["cross_attention"] = _attention(d_model, nhead, dropout, memory | both, options)
    if taken:
        taken |= _taken(options, ("labeler", "num_labels", "tables"))
        options["self_attention"] = _attention(d_model, nhead, dropout, taken, options)
    options = options if "self_attention" in options else _asked(options)
    return rg.RelationDecoderLayer(d_model, nhead, dim_feedforward, dropout, *args, **options)


def transformer(
    d_model=512, nhead=8, num_encoder_layers=6, num_decoder_layers=6, dim_feedforward=2048, dropout=0.1,
    activation="relu", *, labeler=_DISTANCES, target_labeler=None, memory_labeler=None,
    positions=None, norm_first=False, **options,
):  # fmt: skip
    """A Transformer; if layers have further options, they are handed over in an encoder and a decoder."""
    place = {name: options.pop(name) for name in ("device", "dtype") if name in options}
    sizes = (d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, activation)
    if not options:
        return rg.RelationTransformer(
            *sizes, labeler=labeler, target_labeler=target_labeler, memory_labeler=memory_labeler, positions=positions,
            norm_first=norm_first, **place,
        )  # fmt: skip
    memory = {name: options.pop(name) for name in [*options] if name.startswith("memory_")}
    if memory_labeler is not None:
        memory["memory_labeler"] = memory_labeler
    target = labeler if target_labeler is None else target_labeler
    shared = (d_model, nhead, dim_feedforward, dropout, activation)
    rest = {"norm_first": norm_first, **place, **options}
    encoder = encoder_layer(*shared, labeler=labeler, **rest)
    decoder = decoder_layer(*shared, labeler=target, **rest, **memory)
    eps, bias = options.get("layer_norm_eps", 1e-5), options.get("bias", True)
    norms = [nn.LayerNorm(d_model, eps, bias=bias, **place) for _ in range(2)]
    made = rg.RelationTransformer(
        *sizes, positions=positions, norm_first=norm_first, **place,
        custom_encoder=rg.RelationEncoder(encoder, num_encoder_layers, norms[0]),
        custom_decoder=rg.RelationDecoder(decoder, num_decoder_layers, norms[1]),
    )  # fmt: skip
    made.reset_parameters()
    return made


def _asked(options):
    """The options, and that there are no labels if none of them says what the labels are."""
    known = [options.get(name) for name in ("labeler", "num_labels", "rotary", "edge_dim")]
    has_tables = isinstance(options.get("tables"), rg.RelationTables)
    return options if has_tables or known != [None] * 4 else options | {"tables": ()}


def _taken(options, names):
    return {name: options.pop(name) for name in names if name in options}


def _attention(d_model, nhead, dropout, taken, options):
    place = {name: options[name] for name in ("device", "dtype") if name in options}
    bias = taken.pop("attention_bias", options.get("bias", True))
    return attention_layer(d_model, nhead, dropout, bias, **taken, **place)
