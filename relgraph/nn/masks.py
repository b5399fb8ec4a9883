"""The masks of nn.MultiheadAttention, checked and joined into one mask of the polarity of ``functional``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check


def check_padding(
    mask: Any, batch: int, length: int, *, unbatched: bool, name: str = "key_padding_mask"
) -> Tensor | None:
    """``key_padding_mask``, ``[B, N_k]`` or ``[N_k]`` of an unbatched input, as ``[B, N_k]``."""
    if mask is None:
        return None
    check_dtype(name, mask)
    if mask.dtype != torch.bool and mask.is_cpu and mask.numel() and check.can_look_at_data(mask) and mask.amax() > 0:
        raise ValueError(
            f"{name} must hold bools (True blocks) or floats of at most 0, which are added to the scores, got "
            f"values up to {mask.amax().item():g}: if 1 marks what attends, pass mask == 0"
        )
    wanted = [length] if unbatched else [batch, length]
    if list(mask.shape) != wanted:
        what = "[N_k]" if unbatched else "[B, N_k]"
        raise ValueError(f"{name} must have shape {what} = {wanted}, got {list(mask.shape)}")
    return mask[None] if unbatched else mask


def check_pairs(
    mask: Any, batch: int, heads: int, q_len: int, k_len: int, *, unbatched: bool, name: str = "attn_mask"
) -> Tensor | None:
    """``attn_mask``, ``[N_q, N_k]``, ``[B·H, N_q, N_k]`` or ``[B or 1, H or 1, N_q, N_k]``, with all four axes."""
    if mask is None:
        return None
    check_dtype(name, mask)
    shape = list(mask.shape)
    if shape == [q_len, k_len]:
        return mask[None, None]
    if shape == [batch * heads, q_len, k_len]:
        return mask.view(batch, heads, q_len, k_len)
    shared = len(shape) == 4 and check.among(shape[0], 1, batch) and check.among(shape[1], 1, heads)
    if shared and shape[2:] == [q_len, k_len]:
        return mask
    forms = [[q_len, k_len], [batch * heads, q_len, k_len], [batch, heads, q_len, k_len]]
    raise ValueError(
        f"{name} must have shape [N_q, N_k], {'[H' if unbatched else '[B·H'}, N_q, N_k] or [B, H, N_q, N_k], "
        f"{forms[0]}, {forms[1]} or {forms[2]}, got {shape}"
    )


def check_order(name: str, mask: Any, rows: int, past: int) -> None:
    """Raise ValueError if a bool mask of pairs lets a row see a later one; ``past`` keys come before the first row."""
    plain = type(mask) in check.PLAIN and mask.layout == torch.strided and not mask.is_nested
    if not plain or mask.dtype != torch.bool or mask.shape[-2:] != (rows, past + rows):
        return
    later = torch.ones(rows, past + rows, dtype=torch.bool).triu(past + 1)
    if not mask.is_cpu or not check.can_look_at_data(mask) or bool(mask.triu(past + 1).eq(later).all()):
        return
    raise ValueError(
        f"{name} must block all later rows with tgt_is_causal=True, the default, got a mask that lets a row see a "
        "later one: pass tgt_is_causal=False"
    )


def join_masks(pairs: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """One mask, ``[B or 1, H or 1, N_q or 1, N_k]``: bool where True attends, or floating and added."""
    if padding is not None:
        padding = padding[:, None, None, :]
    if pairs is None or padding is None:
        only = padding if pairs is None else pairs
        return None if only is None else ~only if only.dtype == torch.bool else only
    if pairs.dtype == padding.dtype == torch.bool:
        return ~(pairs | padding)
    dtype = pairs.dtype if padding.dtype == torch.bool else padding.dtype
    return as_additive(pairs, dtype) + as_additive(padding, dtype)


def as_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool or floating mask as numbers to add to the scores: -inf where a bool mask blocks."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))


def check_dtype(name: str, mask: Any) -> None:
    """Raise unless ``mask`` is a bool or floating Tensor."""
    check.tensor(name, mask)
    if mask.dtype != torch.bool and mask.dtype not in check.FLOATING_DTYPES:
        hint = ": if 1 marks what attends, pass mask == 0" if mask.dtype in check.INTEGER_DTYPES else ""
        raise ValueError(f"{name} must be bool (True blocks) or floating (added), got {mask.dtype}{hint}")
