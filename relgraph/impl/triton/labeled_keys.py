"""Keys and values that each label maps, for listed pairs: mapped once for every different pair of a key and a label.

Such a pair is a *labeled key*. The edge kernels read the rows of labeled keys in the place of keys, or of values, and
give their gradients. Both directions are products by label over rows that are sorted by label, one for all rows of a
label. Gates need no such rows: the kernels multiply by them, and note a number of each pair for their gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from relgraph.impl.listed import inverse
from relgraph.impl.problem import Problem
from relgraph.impl.terms import repeat_heads
from relgraph.impl.triton.limits import is_recording, uses_tf32
from relgraph.impl.triton.tiling import product_size
from relgraph.plan import Csr, LabelPlan, listed_pairs

TILE, SLICE = 32, 16
"""Rows of a tile that a map multiplies, and their numbers that are multiplied at once: larger ones spill registers."""

STEP = 16
"""Rows of a step in the gradient of a map."""

ROWS_A_SUM, PAIRS_A_SUM = 512, 256
"""Rows, or pairs, of a tile whose sum is stored before those of a label are added."""


class Tiles(NamedTuple):
    """Rows sorted by label, cut into tiles of one label; int32. Tiles beyond the last one are empty.

    Attributes:
        label: ``[T]``.
        start: ``[T]`` its first row.
        end: ``[T]`` where it ends.
        begin: ``[labels + 1]`` where the tiles of each label begin.
    """

    label: Tensor
    start: Tensor
    end: Tensor
    begin: Tensor

    @classmethod
    def of(cls, begin: Tensor, rows: int, size: int) -> Tiles:
        """Tiles of at most ``size`` rows; ``begin`` ``[labels + 1]`` says where the rows of each label begin.

        Their number follows from sizes alone, so that nothing waits for the device.
        """
        labels = begin.shape[0] - 1
        first = torch.nn.functional.pad((begin.diff() + size - 1).div(size, rounding_mode="floor").cumsum(0), (1, 0))
        tile = torch.arange(min(-(-rows // size) + labels, rows), device=begin.device)
        label = torch.searchsorted(first[1:], tile, right=True).clamp_(max=labels - 1)
        start = begin[label] + (tile - first[label]) * size
        return cls(*(x.to(torch.int32) for x in (label, start, torch.minimum(start + size, begin[label + 1]), first)))


class LabeledKeys(NamedTuple):
    """The U different pairs of a key and a label, sorted by label; int32.

    Attributes:
        key: ``[U]``, numbered through batch rows if their pairs differ.
        of_pair: ``[P]`` the labeled key of each pair.
        by_key: ``[U]`` their numbers sorted by key.
        key_begin: ``[m + 1]`` where those of each key begin.
        tiles: for products with maps.
        sums: for gradients of maps.
    """

    key: Tensor
    of_pair: Tensor
    by_key: Tensor
    key_begin: Tensor
    tiles: Tiles
    sums: Tiles

    @classmethod
    def of(cls, csr: Csr, key: Tensor, keys: int, num_labels: int) -> LabeledKeys:
        """Those of listed pairs, whose keys are numbered through ``keys``.

        How many there are is read from the device, except while a CUDA graph is recorded: there each pair has its own.
        """
        code = csr.ids.long().masked_fill(csr.ids < 0, num_labels) * max(keys, 1) + key
        if is_recording(code.device):
            codes, order = code.sort(stable=True)
            of_pair = inverse(order)
        else:
            codes, of_pair = torch.unique(code, return_inverse=True)
        label = codes.div(max(keys, 1), rounding_mode="floor")
        key = codes - label * max(keys, 1)
        begin = torch.searchsorted(label, torch.arange(num_labels + 2, device=label.device))
        sorted_key, by_key = key.sort(stable=True)
        key_begin = torch.searchsorted(sorted_key, torch.arange(keys + 1, device=key.device))
        made: list[Any] = [x.to(torch.int32) for x in (key, of_pair, by_key, key_begin)]
        return cls(*made, *(Tiles.of(begin, key.shape[0], size) for size in (TILE, ROWS_A_SUM)))


class PairsByLabel(NamedTuple):
    """Listed pairs sorted by label, those without one last; int32.

    Attributes:
        pair: ``[P]`` their index among the pairs sorted by row.
        query: ``[P]``, and ``key`` ``[P]``, numbered through batch rows if their pairs differ.
        sums: for gradients of gates.
    """

    pair: Tensor
    query: Tensor
    key: Tensor
    sums: Tiles

    @classmethod
    def of(cls, plan: LabelPlan, csr: Csr) -> PairsByLabel:
        """Those of a plan."""
        labels, (batch, _, key) = plan.num_labels[0], listed_pairs(plan, csr)
        label, order = csr.ids.long().masked_fill(csr.ids < 0, labels).sort(stable=True)
        begin = torch.searchsorted(label, torch.arange(labels + 2, device=label.device))
        made: list[Any] = [x.to(torch.int32) for x in (order, csr.row[order], (key + batch * plan.k_len)[order])]
        return cls(*made, sums=Tiles.of(begin, order.shape[0], PAIRS_A_SUM))


class Mapped:
    """The keys and values of a problem with maps by label, and the gradients of both and of the maps.

    Attributes:
        key: ``[1 or B, G, U, D]`` rows of labeled keys, float32, G = H_kv, or H if maps differ between heads; or the
            keys themselves, without a bilinear score.
        value: the same of values.
    """

    def __init__(self, problem: Problem, labeled: LabeledKeys, *, joint: bool) -> None:
        maps = problem.score_maps, problem.value_maps
        heads = problem.query.shape[1] if any(x is not None and x.dim() == 4 for x in maps) else problem.key.shape[1]
        self.problem, self.labeled, self.joint, self.heads = problem, labeled, joint, heads
        self.inputs = repeat_heads(problem.key, heads), repeat_heads(problem.value, heads)
        self.inputs = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in self.inputs)
        self.lanes = heads if joint else heads * problem.key.shape[0]
        self.key, self.value = (x if m is None else self._mapped(x, m) for x, m in zip(self.inputs, maps, strict=True))

    def empty(self, width: int) -> Tensor:
        """Room for rows of labeled keys, ``[1 or B, G, U, width]``, float32."""
        batch = self.lanes // self.heads
        return self.problem.query.new_empty(batch, self.heads, self.labeled.key.shape[0], width, dtype=torch.float32)

    def gradients(self, dk: Tensor, dv: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of key and value, and of the maps that are given, of values first, from those of labeled keys."""
        of_inputs, of_maps, problem = [], [], self.problem
        given = zip((dk, dv), self.inputs, (problem.score_maps, problem.value_maps), strict=True)
        for grad, x, maps in given:
            if maps is not None:
                of_maps.insert(0, self._of_maps(grad, x, maps))
                grad = self._mapped(grad, maps, turned=True)
            of_inputs.append(self._of_inputs(grad, problem.key.shape[1]).to(x.dtype))
        return of_inputs, of_maps

    def _mapped(self, x: Tensor, maps: Tensor, *, turned: bool = False) -> Tensor:
        """Each labeled key's map times its row of ``x``; turned, the transposed map times its own row."""
        from relgraph.impl.triton.segment_kernels import map_rows_kernel

        labeled, size, maps = self.labeled, x.shape[-1], maps.contiguous()
        out, tiles, block = self.empty(size), labeled.tiles, min(product_size(size), 64)
        blocks = -(-size // block)
        kernel: Any = map_rows_kernel  # pyright does not know the launch syntax
        if count := tiles.label.shape[0] * self.lanes * blocks:
            kernel[(count,)](
                x_ptr=x, maps_ptr=maps, number_ptr=None if turned else labeled.key, label_ptr=tiles.label,
                start_ptr=tiles.start, end_ptr=tiles.end, out_ptr=out, **_strides("x", x),
                maps_h=maps.stride(0) if maps.dim() == 4 else 0,
                maps_o=1 if turned else size, maps_i=size if turned else 1,
                LANES=self.lanes, LENGTH=max(out.shape[2] if turned else x.shape[2], 1), ROWS_OUT=out.shape[2],
                R=maps.shape[-3], D=size, BLOCK=block, BLOCKS=blocks, STEP=SLICE, TILE=TILE,
                H=self.heads, JOINT=self.joint, PRECISION=self._precision(), num_warps=4, num_stages=1,
                enable_fp_fusion=True,
            )  # fmt: skip
        return out

    def _of_maps(self, grad: Tensor, x: Tensor, maps: Tensor) -> Tensor:
        """Σ_s d_s x_sᵀ over the labeled keys of each label."""
        from relgraph.impl.triton.segment_kernels import map_gradients_kernel

        labeled, size, tiles = self.labeled, x.shape[-1], self.labeled.sums
        count, block = tiles.label.shape[0], min(product_size(size), 64)
        blocks = -(-size // block)
        sums = grad.new_empty(self.lanes, count, size * size)
        kernel: Any = map_gradients_kernel
        if count * self.lanes:
            kernel[(count * self.lanes * blocks * blocks,)](
                d_ptr=grad, x_ptr=x, number_ptr=labeled.key, start_ptr=tiles.start, end_ptr=tiles.end, out_ptr=sums,
                **_strides("x", x), LANES=self.lanes, LENGTH=x.shape[2], ROWS_IN=grad.shape[2], TILES=count,
                D=size, BLOCK=block, BLOCKS=blocks, STEP=STEP, H=self.heads, JOINT=self.joint,
                PRECISION=self._precision(), num_warps=4, num_stages=1, enable_fp_fusion=True,
            )  # fmt: skip
        return _of_labels(sums, tiles, maps, 3)

    def _of_inputs(self, grad: Tensor, heads: int) -> Tensor:
        """The gradients of labeled keys summed by key, and over the heads that share one, ``[B, H_kv, N_k, ...]``."""
        labeled, k_len = self.labeled, self.problem.key.shape[2]
        sums = sum_rows(grad.flatten(0, 1), labeled.key_begin, labeled.by_key)
        if self.joint:
            sums = sums.unflatten(1, (-1, k_len)).transpose(0, 1).contiguous()
        else:
            sums = sums.view(-1, self.heads, *sums.shape[1:])
        return sums if self.heads == heads else sums.unflatten(1, (heads, -1)).sum(2)

    def _precision(self) -> str:
        """Half types fit TF32 to the bit."""
        dtype = self.problem.query.dtype
        return "tf32" if dtype != torch.float32 or uses_tf32(dtype) else "ieee"


def gate_gradient(
    problem: Problem, pairs: PairsByLabel, noted: Tensor, a: Tensor, b: Tensor, gate: Tensor, *, joint: bool
) -> Tensor:
    """The gradient of a gate, Σ_p n_p · (a_i ⊙ b_j) over the pairs of each label.

    Args:
        problem: the problem.
        pairs: its pairs by label.
        noted: n, ``[lanes, P]``.
        a: rows of queries, ``[B, H, N_q, D]``.
        b: rows of keys, ``[B, H_kv, N_k, D]``.
        gate: the gate.
        joint: whether lanes join batch rows.
    """
    from relgraph.impl.triton.segment_kernels import gate_gradients_kernel

    tiles, lanes, size, (_, heads, q_len) = pairs.sums, noted.shape[0], a.shape[-1], problem.query.shape[:3]
    count, block = tiles.label.shape[0], max(product_size(size), 16)
    sums = noted.new_empty(lanes, count, size)
    kernel: Any = gate_gradients_kernel
    if count * lanes:
        kernel[(count * lanes,)](
            noted_ptr=noted, a_ptr=a, b_ptr=b, pair_ptr=pairs.pair, query_ptr=pairs.query, key_ptr=pairs.key,
            start_ptr=tiles.start, end_ptr=tiles.end, out_ptr=sums, **_strides("a", a), **_strides("b", b),
            LANES=lanes, N_q=q_len, N_k=b.shape[2], PAIRS=noted.shape[1], TILES=count, D=size, BLOCK=block, STEP=16,
            H=heads, GROUP=heads // b.shape[1], JOINT=joint, num_warps=1 if block <= 64 else 4, enable_fp_fusion=True,
        )  # fmt: skip
    return _of_labels(sums, tiles, gate, 2)


def sum_rows(rows: Tensor, begin: Tensor, listed: Tensor | None = None) -> Tensor:
    """Sums of the rows ``[lanes, U, width]`` from each ``begin`` to the next, or of those that are listed there."""
    from relgraph.impl.triton.segment_kernels import sum_rows_kernel

    (lanes, count, width), sums = rows.shape, begin.shape[0] - 1
    out, block = rows.new_empty(lanes, sums, width), min(product_size(width), 512)
    blocks = -(-width // block)
    kernel: Any = sum_rows_kernel
    if out.numel():
        kernel[(lanes * sums * blocks,)](
            rows_ptr=rows, begin_ptr=begin, list_ptr=listed, out_ptr=out, SUMS=sums, ROWS_IN=count, WIDTH=width,
            BLOCKS=blocks, BLOCK=block, STEP=8, num_warps=1 if block <= 128 else 4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _of_labels(sums: Tensor, tiles: Tiles, like: Tensor, axes: int) -> Tensor:
    """The gradient of what each label has, from sums of tiles; added over batch rows, and heads that share it."""
    labels = like.shape[-axes]
    found = sum_rows(sums, tiles.begin[: labels + 1])
    found = found.unflatten(0, (-1, like.shape[0])).sum(0) if like.dim() > axes else found.sum(0)
    return found.view(like.shape).to(like.dtype)


def _strides(name: str, x: Tensor) -> dict[str, int]:
    """Strides of batch rows, heads and rows."""
    return dict(zip((f"{name}_b", f"{name}_h", f"{name}_n"), x.stride()[:3], strict=True))
