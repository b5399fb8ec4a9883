"""A linear map for each relation from the layer's whole input to all heads: free, of shared bases, or of blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.pyg.messages import in_func_transform
from relgraph.pyg.related import Related, Runs


class Reader(NamedTuple):
    """What is known of inputs that no projection reads."""

    in_channels: int
    weight: Tensor


class FullMaps(nn.Module):
    """Learned maps W[r] from ``in_channels`` to ``width`` = H · C numbers.

    Free maps are one Parameter ``maps`` ``[R, F, H·C]``. With ``num_bases`` all relations share ``bases``
    ``[K, F, H·C]``: W[r] = Σ_k coefficients[r, k] · bases[k], with ``coefficients`` ``[R, K]``. With ``num_blocks`` the
    maps are block-diagonal, ``blocks`` ``[R, B, F/B, H·C/B]``. All are drawn as in Glorot and Bengio 2010.

    Source: Schlichtkrull et al. 2018 (R-GCN), section 2.2; Busbridge et al. 2019 (RGAT).
    """

    maps: nn.Parameter | None
    bases: nn.Parameter | None
    blocks: nn.Parameter | None
    coefficients: nn.Parameter | None

    def __init__(
        self, num_relations: int, in_channels: int, width: int, num_bases: int | None, num_blocks: int | None
    ) -> None:
        super().__init__()
        self.in_channels, self.num_bases, self.num_blocks = in_channels, num_bases, num_blocks
        parts = num_blocks or 1
        counts = {"num_relations": num_relations} if num_bases is None else {"num_bases": num_bases}
        check.parameter_size(in_channels * width // parts, **counts)
        check.parameter_size(num_relations=num_relations, num_bases=num_bases or 1)
        shape = (in_channels // parts, width // parts)
        shapes: dict[str, tuple[int, ...]] = {"maps": (num_relations, *shape)}
        if num_bases is not None:
            shapes = {"bases": (num_bases, *shape), "coefficients": (num_relations, num_bases)}
        elif num_blocks is not None:
            shapes = {"blocks": (num_relations, num_blocks, *shape)}
        for name in ("maps", "bases", "blocks", "coefficients"):
            self.register_parameter(name, nn.Parameter(torch.empty(shapes[name])) if name in shapes else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for one in self.parameters():
            bound = (6.0 / (one.shape[-2] + one.shape[-1])) ** 0.5
            nn.init.uniform_(one, -bound, bound)

    @property
    def weight(self) -> Tensor:
        """One of the parameters, for its dtype and device."""
        return next(self.parameters())

    def forward(self, rows: Tensor, related: Related) -> Tensor:
        """W[r] times the row ``[U, F]`` of every pair of a node and a relation r, ``[U, H·C]``."""
        maps, dtype = self._blocks(), check.autocast_dtype(rows.device.type)
        if dtype is not None and rows.dtype is not torch.float64:
            rows, maps = rows.to(dtype), maps.to(dtype)
        rows = rows.unflatten(-1, maps.shape[1:3])
        if in_func_transform():
            parts = [torch.einsum("ubf,bfc->ubc", rows[first:end], maps[r]) for r, first, end in related.runs]
            return torch.cat([rows.new_empty(0, *maps.shape[1::2]), *parts]).flatten(1)
        return _ByRelation.apply(rows, maps, related.runs).flatten(1)  # pyright: ignore[reportReturnType]

    def numbers(self, x: Tensor, vectors: Tensor) -> Tensor:
        """The products of W[r] x_i with each of A vectors, ``[H·C, A]``: for every node and relation, ``[N, A, R]``."""
        if self.bases is None:
            blocks = self._blocks()
            parts = vectors.unflatten(0, (blocks.shape[1], -1))
            folded = torch.einsum("rbfc,bca->bfar", blocks, parts).flatten(0, 1)
        else:
            assert self.coefficients is not None
            folded = torch.einsum("kfa,rk->far", self.bases @ vectors, self.coefficients)
        return (x @ folded.flatten(1)).view(-1, *folded.shape[1:])

    def _blocks(self) -> Tensor:
        """The maps as blocks, ``[R, B, F/B, H·C/B]``; B is 1 unless they are block-diagonal."""
        if self.blocks is not None:
            return self.blocks
        if self.maps is not None:
            return self.maps[:, None]
        assert self.bases is not None
        assert self.coefficients is not None
        return torch.einsum("rk,kfc->rfc", self.coefficients, self.bases)[:, None]

    def _options(self) -> str:
        """The arguments at the end of the layer's ``repr``."""
        bases = "" if self.num_bases is None else f", num_bases={self.num_bases}"
        return bases if self.num_blocks is None else f", num_blocks={self.num_blocks}"

    def extra_repr(self) -> str:
        """The shapes of the parameters."""
        return ", ".join(f"{name}={list(one.shape)}" for name, one in self.named_parameters())


class _ByRelation(torch.autograd.Function):
    """Rows ``[U, B, f]``, sorted by relation, times the maps ``[R, B, f, c]`` of their relations, without padding."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, maps: Tensor, runs: Runs) -> Tensor:
        ctx.save_for_backward(rows, maps)
        ctx.runs = runs
        out = rows.new_empty(*rows.shape[:2], maps.shape[-1])
        by_block, into = rows.transpose(0, 1), out.transpose(0, 1)
        for relation, first, end in runs:
            torch.bmm(by_block[:, first:end], maps[relation], out=into[:, first:end])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        (rows, maps), runs, needed = ctx.saved_tensors, ctx.runs, ctx.needs_input_grad
        to_rows = _ByRelation.apply(grad, maps.transpose(-1, -2), runs) if needed[0] else None
        return to_rows, _Outer.apply(rows, grad, runs, maps.shape[0]) if needed[1] else None, None


class _Outer(torch.autograd.Function):
    """Σ_u x_u y_uᵀ over the rows u of each relation, ``[R, B, f, c]``; ``[U, B, f]`` and ``[U, B, c]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, runs: Runs, num_relations: int) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.runs = runs
        out = x.new_zeros(num_relations, x.shape[1], x.shape[2], y.shape[2])
        left, right = x.permute(1, 2, 0), y.transpose(0, 1)
        for relation, first, end in runs:
            torch.bmm(left[..., first:end], right[:, first:end], out=out[relation])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,) = grads
        x, y = ctx.saved_tensors
        to_x = _ByRelation.apply(y, grad.transpose(-1, -2), ctx.runs) if ctx.needs_input_grad[0] else None
        return to_x, _ByRelation.apply(x, grad, ctx.runs) if ctx.needs_input_grad[1] else None, None, None
