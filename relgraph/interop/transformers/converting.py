"""Make relgraph's layer from attention modules of transformers, with copies of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from relgraph.interop.transformers.families import Family, all_families, kind_of, nearest
from relgraph.labelers import Labeler
from relgraph.nn import RelationAttention


def convert(module: nn.Module, *, model: nn.Module | None = None) -> tuple[RelationAttention, Labeler]:
    """Make a :class:`~relgraph.RelationAttention` and a labeler from an attention module of Hugging Face.

    The layer has copies of the weights. Called with the labels of the labeler, without dropout, it gives the same
    output as the module for hidden states ``[B, N, E]``. The module does not change.

    Which modules can be converted, and what becomes of their tables:

    - T5 and similar models: any self-attention. Each layer gets a copy of the table that T5 shares, and trains it
      separately.
    - DeBERTa v1 to v3: the rows that the projections give now. They no longer follow the projections, nor the embedding
      of distances that all layers share.
    - BERT and similar models with ``relative_key(_query)``, but not ALBERT. With ``relative_key_query`` the query table
      begins as a copy of the key table. The module has no rows beyond ``max_position_embeddings``, so the layer clips
      distances there.
    - MPNet: a copy of the table that all layers share.
    - LayoutLMv2 and v3: tables of text and of the page, which train in the layer, though not in transformers. Call the
      labeler with ``position_ids`` and ``bbox``, as the encoder gets them.
    - Wav2Vec2-BERT, SeamlessM4T v2, VITS: copies of the module's tables. SpeechT5: a copy of the table that all layers
      share.
    - Wav2Vec2-Conformer, SeamlessM4T: the rows that the projection gives now for the sines of the encoder, 2L - 1 for L
      positions. They no longer follow the projection. Distances of L or more are clipped.
    - Granite Speech: the rows that a block reads. The layer takes states that ``pre_norm`` of the module has
      normalized; the labeler keeps blocks apart.
    - SAM and similar models, BEiT, Data2Vec: tables for the grid that they were made for, and a labeler, which you call
      with the height and width of that grid. The tables are not interpolated to other grids. BEiT's own table and the
      shared one are added up.
    - Swin, Donut, MaskFormer, CLAP: a copy of the table. The layer takes windows, and the mask of a shift as
      ``attn_mask``.

    WavLM, whose queries multiply their biases by gates, and Swin v2, which compares directions, cannot be converted.

    In some models another module does the output projection: ``attention.output.dense`` in BERT, DeBERTa and LayoutLM,
    ``output.dense`` in Donut and Data2Vec. There the output projection of the layer begins as the identity, without a
    bias.

    Args:
        module: an attention module, such as ``model.encoder.block[0].layer[0].SelfAttention`` of T5, patched or not.
        model: a model or encoder that contains the module. It must be given if the tables are outside of the module: in
            the encoder (DeBERTa, MPNet, LayoutLM, SpeechT5, Wav2Vec2-Conformer, SeamlessM4T), in another layer (all but
            the first of a T5), or around it (BEiT).

    Returns:
        The layer, in the dtype, on the device and in the mode of the module, and the labeler.

    Raises:
        TypeError: not a module.
        ValueError: a module of a class that cannot be converted, or one without tables or whose projections are not
            linear layers, such as those with adapters; tables that are outside of the module without ``model``, or a
            model without the module or its tables.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> model = T5EncoderModel(T5Config(vocab_size=8, d_model=16, d_kv=4, d_ff=8, num_layers=2, num_heads=2)).eval()
        >>> attention = model.encoder.block[0].layer[0].SelfAttention
        >>> layer, labeler = rg.interop.transformers.convert(attention)
        >>> x = torch.randn(1, 5, 16)
        >>> torch.allclose(layer(x, labels=labeler(5)), attention(x)[0], atol=1e-5)
        True
        >>> second = model.encoder.block[1].layer[0].SelfAttention                      # uses the table of the first
        >>> layer, labeler = rg.interop.transformers.convert(second, model=model)
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module or None, got {type(model).__name__}")
    kind = kind_of(module)
    family = _convertible().get(kind)
    if family is None:
        own, known = type(module).__name__, {name.split(".")[1] for name in _convertible()}
        why = _reason(kind) or f"; {nearest(own, known)} among their kinds"
        raise ValueError(f"module must be an attention that can be converted, got {own}{why}")
    convert_one: Any = family.convert
    why = family.why_not(module)
    if why is not None:
        raise ValueError(f"module must be an attention with tables, got {type(module).__name__}: {why}")
    adapted = [name for name, part in module.named_modules() if hasattr(part, "base_layer")]
    if adapted:
        raise ValueError(f"module must have no adapters, got some in {', '.join(adapted)}; merge_and_unload() first")
    holder = _holder(module, model, family.holders)
    with torch.no_grad():
        layer, labeler = convert_one(module, holder) if family.holders else convert_one(module)
    some = next(module.parameters())
    return layer.to(some.device, some.dtype).train(module.training), labeler


def _convertible() -> dict[str, Family]:
    """The families by the classes of which layers can be made."""
    return {
        kind: family
        for family in all_families().values()
        if family.convert is not None
        for kind in family.kinds
        if kind not in family.holders and kind not in family.no_layer
    }


def _reason(kind: str) -> str:
    """Why no layer can be made from a known class; "" if there is no reason to give."""
    for family in all_families().values():
        if kind in family.holders:
            return ", which holds tables for several: convert its attention modules, with model="
        if kind in family.no_layer:
            return f": {family.no_layer[kind]}"
    return ""


def _holder(module: nn.Module, model: nn.Module | None, holders: tuple[str, ...]) -> nn.Module | None:
    """The innermost part of the model that has the module and is of one of these classes; None without a model."""
    if model is None:
        return None
    around = [part for part in model.modules() if any(one is module for one in part.modules())]
    if not around:
        raise ValueError(
            f"model must have the module among its own, got {type(model).__name__} without this {type(module).__name__}"
        )
    found = [part for part in around if kind_of(part) in holders]
    if holders and not found:
        names = ", ".join(sorted(name.split(".")[1] for name in holders))
        raise ValueError(
            f"model must have the encoder or stack that holds tables for its attention ({names}), "
            f"got {type(model).__name__}"
        )
    return found[-1] if found else None
