"""Merge attention over disjoint sets of keys into attention over all of them, by their log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check


def merge(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Join attention over disjoint sets of keys into exact attention over all of them.

    With lse = log Σ_s exp(lse_s) over the sets s, α over all keys is α over set s times exp(lse_s - lse)::

        output = Σ_s exp(lse_s - lse) · output_s

    Any sum over keys weighted by α merges this way: the output with its value term, and label masses. Gradients flow to
    outputs and lses.

    Source: the online softmax of Milakov and Gimelshein 2018, as in Dao et al. 2022 (FlashAttention).

    Args:
        outputs: a list or tuple of floating tensors, one ``[..., N_q, D]`` per set.
        lses: a list or tuple of floating tensors, one ``[..., N_q]`` per set; -inf on a row that saw no key of the set.

    Returns:
        ``(output, lse)`` of the union, ``[..., N_q, D]`` and ``[..., N_q]``; zeros and -inf on a row that saw no key;
        NaN and NaN (+inf) on a row with an lse of NaN (+inf).

    Example:
        >>> q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
        >>> halves = [
        ...     rg.relation_attention_with_aux(q, k[:, :, keys], v[:, :, keys], None, need_lse=True)
        ...     for keys in (slice(0, 3), slice(3, 6))
        ... ]
        >>> output, lse = rg.functional.merge([z for z, _ in halves], [aux.lse for _, aux in halves])
        >>> torch.allclose(output, rg.relation_attention(q, k, v, None), atol=1e-6)
        True
    """
    _check_sets(outputs, lses)
    stacked = torch.stack(list(lses))
    top = stacked.detach().amax(0)
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    shares = (stacked - top).exp()
    total = shares.sum(0)
    seen = total != 0  # True for NaN, which stays NaN
    total = torch.where(seen, total, torch.ones_like(total))
    lse = torch.where(seen, top + total.log(), torch.full_like(top, float("-inf")))
    lse = torch.where(top == float("inf"), top, lse)
    merged = sum(share[..., None] * output for share, output in zip(shares / total, outputs, strict=True))
    assert isinstance(merged, Tensor)
    return merged, lse


def _check_sets(outputs: Any, lses: Any) -> None:
    """Raise unless there are one output and one lse per key set, of shapes that fit, on one device."""
    for name, given in (("outputs", outputs), ("lses", lses)):
        if not isinstance(given, (tuple, list)) or not all(isinstance(t, Tensor) for t in given):
            raise TypeError(f"{name} must be a list or tuple of Tensors, got {type(given).__name__}")
        for index, one in enumerate(given):
            check.floating(f"{name}[{index}]", one)
    if not outputs or len(outputs) != len(lses):
        raise ValueError(
            f"outputs and lses must hold one entry per key set, got {len(outputs)} outputs and {len(lses)} lses"
        )
    for output, lse in zip(outputs, lses, strict=True):
        if output.shape != outputs[0].shape or lse.shape != output.shape[:-1]:
            raise ValueError(
                f"outputs must all have shape {list(outputs[0].shape)} and lses {list(outputs[0].shape[:-1])}, "
                f"got {list(output.shape)} and {list(lse.shape)}"
            )
    named = {"outputs": outputs, "lses": lses}
    check.same_device(**{f"{name}[{n}]": one for name, given in named.items() for n, one in enumerate(given)})
