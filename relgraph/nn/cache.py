"""Keys and values kept between calls, so that a sequence can be decoded piece by piece."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.labels.naming import KINDS
from relgraph.nn.masks import as_additive

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MOST_KEYS = (1 << 31) - 1


class KVCache:
    """The keys and values that one attention layer has projected so far.

    Pass it to ``layer(x, is_causal=True, cache=cache)`` (a :class:`~relgraph.RelationAttention`). It adds the keys and
    values of ``x``, and the layer attends over all keys so far: a whole prompt, chunks or single rows give the result
    of one pass over everything. For that no row may see a later one, which may come in another call: the layer raises
    unless ``is_causal`` is True or the labels keep rows from later ones, as those of :class:`~relgraph.Window` ``(n,
    0)`` do. Query row 0 has key position ``len(cache)``. Labels of the whole sequence or graph are cut to the rows and
    columns of each call; or build them for the n new rows, ``labeler(n, len(cache) + n, q_offset=len(cache))``. Pad
    batches on the left; the cache remembers the ``key_padding_mask`` of each chunk.

    A *static* cache is for cross-attention: the first call fills it and later calls only read it, so that a memory is
    projected once.

    Without gradients (``torch.no_grad``, ``torch.inference_mode``) the cache writes rows in place, into a buffer that
    has ``max_len`` rows or, without ``max_len``, doubles when it is full. With gradients enabled it concatenates rows,
    which is slower, but gradients flow through every step as they would in one pass. ``len(cache)`` is the number of
    keys.

    Args:
        max_len: how many keys there may be; without it the cache grows.
        static: whether the first call fills the cache for good.

    Raises:
        ValueError: ``max_len`` below 1 or beyond 2³¹ - 1.

    Example:
        >>> layer, labeler = rg.RelationAttention(8, 2, num_labels=5), rg.ClippedDistance(2)
        >>> x, cache = torch.randn(1, 6, 8), rg.KVCache()
        >>> labels = labeler(6)
        >>> first = layer(x[:, :4], labels=labels, is_causal=True, cache=cache)
        >>> rest = layer(x[:, 4:], labels=labels, is_causal=True, cache=cache)  # or labeler(2, 6, q_offset=4)
        >>> whole = layer(x, labels=labels, is_causal=True)
        >>> torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-6), len(cache)
        (True, 6)
    """

    def __init__(self, max_len: int | None = None, *, static: bool = False) -> None:
        self.max_len = None
        if max_len is not None:
            self.max_len = check.integer("max_len", max_len, minimum=1, maximum=_MOST_KEYS)
        self.static = check.boolean("static", static)
        self.reset()

    def reset(self) -> None:
        """Forget everything and free its memory."""
        self._length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._padding: Tensor | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def key(self) -> Tensor | None:
        """``[B, H_kv, N, D]``, all keys so far; None before the first."""
        return None if self._key is None else self._key[:, :, : self._length]

    @property
    def value(self) -> Tensor | None:
        """``[B, H_kv, N, D_v]``, all values so far; None before the first."""
        return None if self._value is None else self._value[:, :, : self._length]

    @property
    def padding(self) -> Tensor | None:
        """``[B, N]``, the padding mask of all keys so far; None if no chunk had one."""
        return self._padding

    def _check_room(self, batch: int, length: int) -> None:
        """Raise ValueError unless ``length`` more keys of ``batch`` rows fit."""
        if self._key is not None and self._key.shape[0] != batch:
            raise ValueError(f"cache holds {self._key.shape[0]} batch rows, got {batch}: reset or reorder it first")
        if self.max_len is not None and self._length + length > self.max_len:
            raise ValueError(f"cache must hold at most max_len = {self.max_len} keys, got {self._length} + {length}")

    def _append(self, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add new keys and values, ``[B, H_kv, n, D]``, and return all of them and the padding mask of all keys.

        ``padding`` is ``[B, n]``, bool (True is padding) or added to the scores; None when nothing is padding.
        """
        batch, _, length, _ = key.shape
        _check_matches_cache("key", self._key, key)
        _check_matches_cache("value", self._value, value)
        joined = self._joined_padding(padding, batch, length)
        kept = not _locked(self._key)
        keys, values = self._store(self._key, key, kept=kept), self._store(self._value, value, kept=kept)
        self._key, self._value, self._padding = keys, values, joined
        self._length += length
        return keys.narrow(2, 0, self._length), values.narrow(2, 0, self._length), joined

    def _store(self, buffer: Tensor | None, new: Tensor, *, kept: bool) -> Tensor:
        """The buffer, the same one if it is kept and has room, with ``new`` after the first ``len(self)`` rows."""
        start, length = self._length, new.shape[2]
        if torch.is_grad_enabled():
            return new if buffer is None else torch.cat([buffer[:, :, :start], new], 2)
        room, stop = 0 if buffer is None else buffer.shape[2], start + length
        if buffer is None or room < stop or not kept:
            size = self.max_len if self.max_len is not None else stop if buffer is None else max(stop, 2 * room)
            grown = new.new_zeros(*new.shape[:2], size, new.shape[3])
            if buffer is not None:
                grown[:, :, :start] = buffer[:, :, :start]
            buffer = grown
        buffer.narrow(2, start, length).copy_(new)
        return buffer

    def _joined_padding(self, new: Tensor | None, batch: int, length: int) -> Tensor | None:
        """The padding mask of the keys so far and of ``length`` new keys, ``[B, N + n]``; None if neither has one."""
        old = self._padding
        if old is None and new is None:
            return None
        check.same_device(cache=self._key, padding=new)
        if old is None:
            assert new is not None
            old = torch.zeros(batch, self._length, dtype=torch.bool, device=new.device)
        if new is None:
            new = torch.zeros(batch, length, dtype=torch.bool, device=old.device)
        if old.dtype != new.dtype:
            dtype = old.dtype if new.dtype == torch.bool else new.dtype
            old, new = as_additive(old, dtype), as_additive(new, dtype)
        return torch.cat([old, new], 1)

    def reorder(self, index: Tensor) -> None:
        """Let batch row b continue from the keys and values of row ``index[b]``, as in beam search.

        Args:
            index: ``[B']``, integers in ``[0, B)``; B' may differ from B.

        Raises:
            TypeError, ValueError: not integers on one axis, or beyond B (found on the CPU only).
        """
        index = check.integer_tensor("index", index, dim=1)
        if self._key is not None:
            _check_rows(index, self._key.shape[0])
            if not self._key.is_meta:
                check.data("index", index)
        for name in ("_key", "_value", "_padding"):
            if (x := getattr(self, name)) is not None:
                setattr(self, name, x.index_select(0, index.to(x.device, torch.int64)))

    def __repr__(self) -> str:
        parts = [f"{self._length} keys"] + ["static"] * self.static
        return f"KVCache({', '.join(parts)}{'' if self.max_len is None else f', max_len={self.max_len}'})"


def _locked(buffer: Tensor | None) -> bool:
    """Whether the buffer was made in inference mode and may not be written here, outside of it."""
    if buffer is None or torch.compiler.is_compiling():
        return False
    return buffer.is_inference() and not torch.is_inference_mode_enabled()


def _check_matches_cache(name: str, old: Tensor | None, new: Tensor) -> None:
    """Raise ValueError unless ``new`` has the dtype, device, heads and width of what the cache holds."""
    if old is None:
        return
    if old.dtype != new.dtype:
        raise ValueError(f"cache holds {name}s of {old.dtype}, got {new.dtype}: reset it first")
    if old.device != new.device:
        raise ValueError(f"{name} must be on the device of the cache, {old.device}, got {new.device}")
    wanted, got = [old.shape[1], old.shape[3]], [new.shape[1], new.shape[3]]
    if wanted != got:
        raise ValueError(f"{name} must have the heads and width that the cache holds, {wanted}, got {got}")


def _check_rows(index: Tensor, batch: int) -> None:
    """Raise ValueError unless ``index`` names batch rows; an accelerator skips this, because it would have to wait."""
    if index.device.type != "cpu" or index.numel() == 0 or not check.can_look_at_data(index):
        return
    low, high = (int(x) for x in torch.aminmax(index))
    if low < 0 or high >= batch:
        raise ValueError(
            f"index must lie in [0, {batch}), the batch rows of the cache, got values from {low} to {high}"
        )


class _Caches(ABC):
    """Several caches that are emptied and reordered together."""

    @abstractmethod
    def _parts(self) -> Sequence[KVCache | LayerCache]:
        """The caches."""

    def reset(self) -> None:
        """Forget everything in all caches; in a decoder, those of target and memory."""
        for part in self._parts():
            part.reset()

    def reorder(self, index: Tensor) -> None:
        """Reorder the batch rows of all caches: see :meth:`~relgraph.KVCache.reorder`.

        Args:
            index: ``[B']``, integers.
        """
        for part in self._parts():
            part.reorder(index)


class LayerCache(_Caches):
    """The two caches of a decoder layer: one that grows with the target and a static one for the memory.

    ``cache.self_attn`` and ``cache.multihead_attn`` are :class:`~relgraph.KVCache` objects, named after the layer's two
    attentions. ``len(cache)`` is the number of target rows.

    Args:
        max_len: how many target rows there may be; without it the cache grows.

    Example:
        >>> layer, cache = rg.RelationDecoderLayer(8, 2, 16, labeler=rg.ClippedDistance(2)).eval(), rg.nn.LayerCache()
        >>> with torch.no_grad():
        ...     out = layer(torch.randn(1, 3, 8), torch.randn(1, 5, 8), cache=cache)
        >>> len(cache), len(cache.multihead_attn)
        (3, 5)
    """

    def __init__(self, max_len: int | None = None) -> None:
        self.self_attn = KVCache(max_len)
        self.multihead_attn = KVCache(static=True)

    def __len__(self) -> int:
        return len(self.self_attn)

    def _parts(self) -> tuple[KVCache, KVCache]:
        return self.self_attn, self.multihead_attn

    def __repr__(self) -> str:
        return f"LayerCache({self.self_attn!r}, {self.multihead_attn!r})"


class StackCache(_Caches):
    """The caches of all layers of a stack; made by the stack's ``new_cache()``.

    Iterating gives one cache per layer; ``len(cache)`` is the number of rows that each holds.

    Args:
        *layers: one cache per layer, :class:`~relgraph.KVCache` for an encoder, :class:`~relgraph.nn.LayerCache`
            for a decoder.

    Example:
        >>> encoder = rg.RelationEncoder(rg.RelationEncoderLayer(8, 2, 16, labeler=rg.Window()), 2).eval()
        >>> cache = encoder.new_cache()
        >>> len(cache.layers), len(cache)
        (2, 0)
        >>> z = encoder(torch.randn(1, 4, 8), is_causal=True, cache=cache)
        >>> len(cache)
        4
    """

    def __init__(self, *layers: KVCache | LayerCache) -> None:
        for layer in layers:
            if not isinstance(layer, (KVCache, LayerCache)):
                raise TypeError(f"layers must be KVCaches or LayerCaches, got {type(layer).__name__}")
        self.layers = layers

    def __len__(self) -> int:
        return len(self.layers[0]) if self.layers else 0

    def __iter__(self) -> Iterator[KVCache | LayerCache]:
        return iter(self.layers)

    def _parts(self) -> tuple[KVCache | LayerCache, ...]:
        return self.layers

    def __repr__(self) -> str:
        return f"StackCache({len(self.layers)} layers, {len(self)} keys)"


def labels_of_new_rows(labels: Any, past: int, length: int) -> Any:
    """Cut labels of a whole sequence to ``length`` rows after ``past`` against all keys so far; return others."""
    stop = past + length
    if type(labels) not in KINDS or labels.packed or (labels.q_len == length and labels.k_len == stop):
        return labels
    if labels.q_len != labels.k_len or labels.q_len < stop:
        return labels
    return labels.rows(past, stop).cols(0, stop)


def memory_labels_of_new_rows(labels: Any, past: int, length: int) -> Any:
    """Cut labels of a whole target against the memory to ``length`` target rows after ``past``; return others."""
    if type(labels) not in KINDS or labels.packed or labels.q_len == length or labels.q_len < past + length:
        return labels
    return labels.rows(past, past + length)


def restores_cache_on_error(forward: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let ``forward``, unless it is compiled, restore its ``cache`` if anything raises; nothing reads rows beyond."""

    @functools.wraps(forward)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if kwargs.get("cache") is None or torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        before = [(cache, vars(cache).copy()) for cache in _kv_caches(kwargs["cache"])]
        try:
            return forward(*args, **kwargs)
        except BaseException:
            for cache, state in before:
                vars(cache).update(state)
            raise

    return guarded


def _kv_caches(cache: Any) -> list[KVCache]:
    """Every KVCache within ``cache``."""
    if isinstance(cache, KVCache):
        return [cache]
    return [inner for part in cache._parts() for inner in _kv_caches(part)] if isinstance(cache, _Caches) else []
