"""tensor2tensor's Transformer with ``dot_product_relative``: names of TensorFlow's variables, kernels ``[in, out]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from relgraph.interop.checkpoints.reader import Reader
from relgraph.labelers import ClippedDistance
from relgraph.nn import RelationAttention, RelationDecoder, RelationEncoder, RelationTransformer

_BEFORE, _AFTER = "layer_prepostprocess/layer_norm/layer_norm_", "layer_postprocess/layer_norm/layer_norm_"


class _Reader(Reader):
    maps = ("q", "k", "v", "output_transform")
    tables: Mapping[str, str] = MappingProxyType(
        {kind: f"dot_product_attention_relative/relative_positions_{kind}s/embeddings" for kind in ("key", "value")}
    )
    linears = ("ffn/conv1", "ffn/conv2")
    alone = ("layer_",)
    sides = ("encoder/layer_", "decoder/layer_")
    attention_at, memory_at = "self_attention/multihead_attention/", "encdec_attention/multihead_attention/"
    wanted = (
        "an attention, with 'q/kernel'", "an encoder or a decoder, with 'layer_0/self_attention/'",
        "a model, with 'encoder/layer_0/' and 'decoder/layer_0/'",
    )  # fmt: skip
    attention_bias = False
    weight, bias, norm_weight, norm_bias, end = "/kernel", "/bias", "scale", "bias", "/"
    transposed = True

    def _start(self, at: str) -> None:
        super()._start(at)
        self.norm_first = f"{at}0/self_attention/{_BEFORE}scale" in self.entries

    def _norms(self, at: str, memory: bool) -> tuple[Sequence[str], str | None]:
        """With norms before each step, there is one more after the last layer."""
        place = _BEFORE if self.norm_first else _AFTER
        steps = ("self_attention", "encdec_attention", "ffn") if memory else ("self_attention", "ffn")
        last = at.removesuffix("layer_") + _BEFORE if self.norm_first else None
        return [f"{step}/{place}" for step in steps], last


def from_tensor2tensor(
    state: Mapping[str, Any],
    *,
    prefix: str = "",
    layer_norm_eps: float = 1e-6,
    dropout: float = 0.0,
    leave_out: Sequence[str] = (),
) -> tuple[RelationAttention | RelationEncoder | RelationDecoder | RelationTransformer, ClippedDistance]:
    """Read a Transformer of tensor2tensor, or a part of it; return it with the labeler of its distances.

    It must have ``self_attention_type="dot_product_relative"``: tables for keys and for values in each self-attention,
    shared by its heads. Their rows count j - i, key minus query, clipped at ±k, as in relgraph. Kernels are transposed.
    The number of heads follows from the width of a row. Norms come before each step, as in the presets
    ``transformer_relative``, or after it; the names show which.

    Args:
        state: names and tensors, or arrays of numpy, such as those of ``tf.train.load_checkpoint``. A ``":0"`` at the
            end of a name is ignored.
        prefix: the beginning of the names. The next part of the names decides which module is made:

            - ``q/kernel``: :class:`~relgraph.RelationAttention`; such a prefix ends in
              ``"self_attention/multihead_attention/"``;
            - ``layer_0/self_attention/...``: :class:`~relgraph.RelationEncoder`, which you call with
              ``is_causal=True`` if it was a decoder without a memory; with ``layer_0/encdec_attention/...``
              :class:`~relgraph.RelationDecoder`; such a prefix is ``"transformer/body/encoder/"``;
            - ``encoder/layer_0/...`` and ``decoder/layer_0/...``: :class:`~relgraph.RelationTransformer`; such a prefix
              is ``"transformer/body/"``. Its ``target_space_embedding`` has no place there: leave it out, and add its
              row to the embedded inputs.

        layer_norm_eps: ``norm_epsilon`` of the original.
        dropout: dropout of the new module.
        leave_out: ``fnmatch`` patterns for names after the prefix of tensors to skip; ``"*/Adam*"`` is the state of an
            optimizer.

    Returns:
        The module with copies of the weights, in their dtype and on their device, and its labeler.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a prefix, pattern or tensor that does not fit; see the package.

    Example:
        >>> at = "transformer/body/encoder/layer_0/self_attention/multihead_attention/"
        >>> state = {f"{at}{name}/kernel": torch.randn(16, 16) for name in ("q", "k", "v", "output_transform")}
        >>> for kind in ("keys", "values"):                                                     # k = 3, 4 heads
        ...     state[f"{at}dot_product_attention_relative/relative_positions_{kind}/embeddings"] = torch.randn(7, 4)
        >>> layer, labeler = rg.interop.checkpoints.from_tensor2tensor(state, prefix=at)
        >>> labeler, layer(torch.randn(1, 5, 16), labels=labeler(5)).shape
        (ClippedDistance(3), torch.Size([1, 5, 16]))
    """
    return _Reader(_without_numbers(state), prefix, leave_out).build(dropout, layer_norm_eps=layer_norm_eps)


def _without_numbers(state: Any) -> Any:
    """Names of tensors of TensorFlow end in ``:0``, those of its variables in a checkpoint do not."""
    if not isinstance(state, Mapping) or not any(isinstance(name, str) and name.endswith(":0") for name in state):
        return state
    found: dict[Any, Any] = {}
    for name, tensor in state.items():
        short = name.removesuffix(":0") if isinstance(name, str) else name
        if short in found:
            raise ValueError(f"state must have each name once, with or without ':0', got both for {short!r}")
        found[short] = tensor
    return found
