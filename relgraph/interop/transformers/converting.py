"""Attention modules of transformers as relgraph's own layer, weights copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.interop.transformers.families import all_families, kind_of
from relgraph.labelers import Labeler
from relgraph.nn import RelationAttention


def convert(module: nn.Module) -> tuple[RelationAttention, Labeler]:
    """An attention module of Hugging Face as a :class:`~relgraph.RelationAttention`, and the labeler of its tables.

    The layer has copies of the weights and gives what the module gives for hidden states ``[B, N, E]``, without
    dropout, called with the labels of the labeler. The module stays as it is.

    Args:
        module: an attention module that holds its own table, such as ``model.encoder.block[0].layer[0].SelfAttention``
            of T5 (the other layers use that of the first), patched or not.

    Returns:
        The layer, in the dtype, on the device and in the mode of the module, and the labeler.

    Raises:
        TypeError: not a module.
        ValueError: a module of a class that cannot be converted, one without a table of its own, or one with
            adapters that were not merged.

    Example:
        >>> from transformers import T5Config, T5EncoderModel
        >>> model = T5EncoderModel(T5Config(vocab_size=8, d_model=16, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).eval()
        >>> attention = model.encoder.block[0].layer[0].SelfAttention
        >>> layer, labeler = rg.interop.transformers.convert(attention)
        >>> x = torch.randn(1, 5, 16)
        >>> torch.allclose(layer(x, labels=labeler(5)), attention(x)[0], atol=1e-5)
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    kind = kind_of(module)
    known = {kind: family for family in all_families().values() if family.convert for kind in family.kinds}
    if kind not in known:
        names = ", ".join(sorted(name.split(".")[1] for name in known))
        raise ValueError(f"module must be an attention that can be converted ({names}), got {type(module).__name__}")
    convert_one: Any = known[kind].convert
    why = known[kind].why_not(module)
    if why is not None:
        raise ValueError(f"module must be an attention with tables, got {type(module).__name__}: {why}")
    adapted = [name for name, part in module.named_modules() if hasattr(part, "base_layer")]
    if adapted:
        raise ValueError(f"module must have no adapters, got some in {', '.join(adapted)}; merge_and_unload() first")
    layer, labeler = convert_one(module)
    some = next(module.parameters())
    return layer.to(some.device, some.dtype).train(module.training), labeler


def filled(layer: RelationAttention, weights: dict[str, Tensor]) -> RelationAttention:
    """The layer with these numbers, by the names of its parameters; all must be there and no other.

    Raises:
        ValueError: a parameter that is missing or left over, or of another shape.
    """
    parameters = dict(layer.named_parameters())
    if parameters.keys() != weights.keys():
        raise ValueError(f"weights must be those of {sorted(parameters)}, got {sorted(weights)}")
    layer.to(next(iter(weights.values())).dtype)  # before they are copied, so that none is rounded
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != weights[name].shape:
                shapes = f"{list(parameter.shape)}, got {list(weights[name].shape)}"
                raise ValueError(f"{name} must have shape {shapes}")
            parameter.copy_(weights[name])
    return layer
