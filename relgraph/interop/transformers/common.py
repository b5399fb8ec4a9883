"""Code that the attention modules of all families share: the version of transformers, masks, weights, refusals."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from relgraph.functional.attention import attend as attention
from relgraph.functional.sink import share_of_keys
from relgraph.labels import Labels, total
from relgraph.labels.memory import memory_of

OLDEST, TOO_NEW = (5, 24), (6, 0)
"""Versions of transformers from the first on, below the second."""

IMPL = "_relgraph_impl"
"""The attribute of a patched module that names the implementation it was given."""

SINKS = "s_aux"
"""The argument of models with attention sinks, scores that take a share of the weights and no value."""


@dataclass(frozen=True)
class Biases:
    """Labels of one or more kinds and a table ``[H, R]`` for each, in place of an encoder's biases of all pairs."""

    labels: tuple[Labels, ...]
    tables: tuple[Tensor, ...]

    def terms(self) -> dict[str, Any]:
        """The arguments of :func:`compute`."""
        if len(self.labels) == 1:
            return {"labels": self.labels[0], "bias_table": self.tables[0]}
        return {"labels": total(*self.labels), "bias_table": self.tables}


@functools.cache
def version() -> tuple[int, int]:
    """Major and minor version of transformers."""
    import transformers

    found = re.match(r"(\d+)\.(\d+)", transformers.__version__)
    assert found is not None, transformers.__version__
    return int(found[1]), int(found[2])


def check_version() -> None:
    """Raise ImportError unless transformers is installed in a version whose modules are known."""
    oldest, too_new = (".".join(map(str, bound)) for bound in (OLDEST, TOO_NEW))
    try:
        import transformers
    except ImportError:
        command = f"pip install 'transformers>={oldest},<{too_new}'"
        raise ImportError(f"relgraph.interop.transformers needs transformers: {command}") from None
    if not OLDEST <= version() < TOO_NEW:
        wanted = f"transformers {oldest} or newer, before {too_new}"
        raise ImportError(f"relgraph.interop.transformers needs {wanted}, got {transformers.__version__}")


def compute(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    labels: Labels | None,
    *,
    mask: Tensor | None,
    dropout: float,
    scale: float | None,
    need_weights: bool = False,
    row_sinks: Tensor | None = None,
    **terms: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output ``[B, N_q, H · D_v]`` of a module's attention, and on request the weights, which takes ``"dense"``.

    ``mask`` is that of transformers: None (then causal if the module is), or ``[B, 1 or H, 1 or N_q, at least N_k]``,
    bool or added to scores. ``row_sinks``, ``[B, H, N_q]``, are scores that join the softmax of each query and carry no
    value; the weights leave them out. ``terms`` are other arguments of :func:`~relgraph.relation_attention`.
    """
    # a causal model passes no mask if a fused implementation needs none: see sdpa_mask in transformers
    causal = mask is None and query.shape[2] > 1 and bool(getattr(module, "is_causal", False))
    given = {
        "query": query, "key": key, "value": value, "labels": labels, "is_causal": causal,
        "attn_mask": None if mask is None else trimmed(one_row(mask), key.shape[-2]),
        "enable_gqa": key.shape[1] != query.shape[1], "scale": scale,
        "dropout_p": dropout if module.training else 0.0, "need_weights": need_weights,
        "impl": "dense" if need_weights else getattr(module, IMPL, None),
    }  # fmt: skip
    if row_sinks is None:
        output, aux = attention({**given, **terms})
        return output.transpose(1, 2).flatten(2), aux.weights
    output, aux = attention({**given, **terms}, need_lse=True)
    assert aux.lse is not None  # asked for
    share = share_of_keys(aux.lse, row_sinks)[..., None]
    weights = None if aux.weights is None else aux.weights * share
    output = output * share.to(output.dtype)
    return output.transpose(1, 2).flatten(2), weights


def rows_of(embedding: nn.Module) -> Tensor:
    """All rows of an embedding; if an adapter wraps it, or a hook brings its weight, the rows that the call gives."""
    if type(embedding) is nn.Embedding and "forward" not in vars(embedding):
        return embedding.weight
    weight: Any = embedding.weight  # an adapter gives that of the embedding within, which has the right size only
    # accelerate keeps weights that it offloads on the meta device, and moves row numbers to the right device
    device = "cpu" if weight.is_meta and "forward" in vars(embedding) else weight.device
    return embedding(torch.arange(weight.shape[0], device=device))


def shared_table(given: Tensor, axes: str) -> Tensor:
    """The table that a patched layer or encoder passes on in place of the bias of all pairs."""
    if given.dim() != 2:
        raise ValueError(
            f"position_bias must be the table {axes} of a patched layer, got shape {list(given.shape)}: all layers "
            "share one bias, so patch the whole model"
        )
    return given


def trimmed(mask: Tensor | None, keys: int) -> Tensor | None:
    """A mask cut to the number of keys (a static cache has room for more), and to one row if it is an expanded row."""
    if mask is None:
        return None
    if mask.shape[-1] != keys:
        mask = mask[..., :keys]
    if mask.shape[-2] > 1 and mask.stride(-2) == 0:
        mask = mask[..., :1, :]
    return mask


def weight_of(linear: nn.Module) -> Tensor:
    """The weight of a linear layer without a bias; if a hook brings it, what the call gives for the unit vectors."""
    weight: Any = linear.weight
    if not weight.is_meta or "forward" not in vars(linear):
        return weight
    return linear(torch.eye(weight.shape[1], dtype=weight.dtype, device="cpu")).t()


def one_row(mask: Tensor | None) -> Tensor | None:
    """Cut a mask of keys that is written out for each query to one row; return any other mask unchanged.

    All layers get the same tensor, which is read once; never on a GPU, because the host would wait, nor in a graph.
    """
    if mask is None or mask.shape[-2] == 1 or mask.requires_grad or not mask.is_cpu or torch.compiler.is_compiling():
        return mask
    if mask.stride(-2) == 0:
        return mask[..., :1, :]
    first = mask[..., :1, :]
    found = memory_of([mask]).once(
        "one row", lambda: first.clone() if torch.equal(mask, first.expand_as(mask)) else None
    )
    return mask if found is None else found


def wants_weights(module: nn.Module, given: dict[str, Any]) -> bool:
    """Whether the caller asks for attention weights, by argument, by the configuration or by hooks of the model."""
    asked = given.get("output_attentions")
    if asked is None:
        asked = getattr(getattr(module, "config", None), "output_attentions", False)
    return bool(asked) or is_recorded()


def is_recorded() -> bool:
    """Whether transformers records the attention weights that modules return.

    Some models do not hand ``output_attentions`` to their attention but record what its forward returns, by a hook that
    asks a collector.
    """
    from transformers.utils.output_capturing import _active_collector

    # compiled code cannot ask a context variable; while it is made the collector is a plain attribute
    collected = _active_collector.global_var if torch.compiler.is_compiling() else _active_collector.get()
    return collected is not None and "attentions" in collected


def made_once(module: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """``make(module)``, remembered in the module under a name.

    ``patch`` asks for it first, because a recorded graph may not wait for values, such as the borders of buckets.
    """
    found = module.__dict__.get(f"_relgraph_{name}")
    return module.__dict__.setdefault(f"_relgraph_{name}", make(module)) if found is None else found


def split_heads(x: Tensor, size: int) -> Tensor:
    """``[B, N, H · D]`` as ``[B, H, N, D]``, with heads of ``size`` elements."""
    return x.view(*x.shape[:-1], -1, size).transpose(1, 2)


def with_cache(
    cache: Any, layer: int | None, project: Callable[[], tuple[Tensor, Tensor]], *, over_others: bool
) -> tuple[Tensor, Tensor]:
    """Keys and values with those of the cache; of the states of an encoder, ``over_others``, they are made once."""
    two, own = hasattr(cache, "cross_attention_cache"), cache
    if two:
        own = cache.cross_attention_cache if over_others else cache.self_attention_cache
        if over_others and cache.is_updated.get(layer):
            return own.layers[layer].keys, own.layers[layer].values
    key, value = project()
    if own is not None:
        key, value = own.update(key, value, layer)
    if two and over_others:
        cache.is_updated[layer] = True
    return key, value
