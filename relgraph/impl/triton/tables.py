"""The terms of tables: B and C before the kernels, the value term after them, and the gradients of all of these.

:class:`Terms` is plain torch, without autograd, in as few operators as possible, because each costs the host some
microseconds in every call. B and C are made again in backward, which costs less than keeping them. Columns are those of
B, C and the sums by label. A table has a row for each column, or for all but the last, which is then zero, for pairs
without a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Call, Tables
from relgraph.impl import op
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import repeat_heads, with_zero_row


def run(call: Call, kernels: str, tables: Tables, columns: int) -> Outputs:
    """Run the primitive: output with the value term, log-sum-exp, and the sums by label.

    Args:
        call: the call.
        kernels: the name under which the primitive finds them.
        tables: with a row for each column, or for all but the last.
        columns: width of B, C and the sums by label.
    """
    return op.run(
        call, kernels, columns=columns, need_sums=tables.value is not None, seed_device=call.query.device,
        recorded=False, label_keys=tables.key, label_values=tables.value, label_queries=tables.query,
        label_biases=tables.bias,
    )  # fmt: skip


class Terms:
    """The terms of one problem, in one direction; queries, keys and tables in float32.

    Attributes:
        by_query: B, contiguous ``[B, H, N_q, columns]``, or None.
        by_key: C, contiguous ``[B, H, N_k, columns]``, or None.
    """

    def __init__(self, problem: Problem, dead: Tensor | None = None) -> None:
        """``dead`` says which columns are of pairs that do not attend, if there are any."""
        self.problem = problem
        self.queries = self.key_rows = self.keys = self.query_rows = None
        if problem.label_keys is not None:
            self.queries, self.key_rows = _single(problem.query), padded(problem.label_keys, problem.columns).float()
        if problem.label_queries is not None:
            self.keys, self.query_rows = _single(problem.key), padded(problem.label_queries, problem.columns).float()
        self.by_query = self._by_query(dead)
        self.by_key = self._by_key()

    def _by_query(self, dead: Tensor | None) -> Tensor | None:
        problem, found = self.problem, None
        if self.queries is not None and self.key_rows is not None:
            found = _product(self.queries, self.key_rows, problem.scale)
        if problem.label_biases is not None:
            bias = problem.label_biases if problem.label_biases.dim() == 1 else problem.label_biases[:, None]
            bias = padded(bias, problem.columns, -1)
            if found is None:
                found = bias.float().expand(*problem.query.shape[:3], -1).contiguous()
            else:
                found = found.add_(bias)
        if dead is None:
            return found
        if found is None:
            found = problem.query.new_zeros(*problem.query.shape[:3], problem.columns, dtype=torch.float32)
        return found.masked_fill(dead, float("-inf"))

    def _by_key(self) -> Tensor | None:
        problem = self.problem
        if self.keys is None or self.query_rows is None:
            return None
        heads = problem.query.shape[1]
        if self.query_rows.dim() == 3:
            return _product(repeat_heads(self.keys, heads), self.query_rows, problem.scale)
        return repeat_heads(_product(self.keys, self.query_rows, problem.scale), heads)

    def with_value_term(self, outputs: Outputs) -> Outputs:
        """The outputs of kernels with the value term, Σ_r P[i, r]·a^V[r], and without it for backward."""
        table = self.problem.label_values
        if table is None:
            return outputs
        output, sums = outputs.output, _first(outputs.sums, table.shape[-2])
        if table.dim() == 2:
            whole = torch.addmm(output.flatten(0, 2), sums.flatten(0, 2), table.float()).view(output.shape)
        else:
            whole = output + sums @ table.float()
        return outputs._replace(output=whole, plain=output)

    def without_value_term(self, outputs: Outputs) -> Outputs:
        """The outputs as the kernels gave them."""
        if self.problem.label_values is None:
            return outputs
        assert outputs.plain is not None  # plug(..., keeps_plain=True)
        return outputs._replace(output=outputs.plain, plain=None)

    def whole_incoming(self, incoming: Outputs) -> Outputs:
        """The gradients of the outputs in float32, contiguous; the value term adds to the gradient of the sums."""
        output, lse, sums = (None if grad is None else _single(grad) for grad in incoming[:3])
        table = self.problem.label_values
        if table is not None and output is not None:
            more = _product(output, padded(table, self.problem.columns).float())
            sums = more if sums is None else sums + more
        return Outputs(output, lse, sums, None)

    def gradients(self, of_kernels: list[Tensor | None], outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:
        """The gradients in the order that :func:`relgraph.impl.op.plug` requires, from those of the kernels.

        Args:
            of_kernels: the gradients of query, key, value, B and C; those of query and key are changed in place.
            outputs: the outputs of forward.
            incoming: the gradients of the outputs, float32 and contiguous.
        """
        problem, (dq, dk, dv, db, dc) = self.problem, of_kernels
        of_keys = of_values = of_queries = of_biases = None
        if problem.label_keys is not None:
            of_keys = self._of_scores(db, self.queries, self.key_rows, problem.label_keys, dq)
        if problem.label_queries is not None:
            of_queries = self._of_scores(dc, self.keys, self.query_rows, problem.label_queries, dk)
        if problem.label_biases is not None:
            assert db is not None
            summed = db.sum((0, 2) if problem.label_biases.dim() == 2 else (0, 1, 2))
            of_biases = _first(summed, problem.label_biases.shape[-1]).to(problem.label_biases.dtype)
        if problem.label_values is not None:
            of_values = self._of_values(outputs.sums, incoming.output, problem.label_values)
        return [dq, dk, dv, None, None, of_keys, of_values, of_queries, of_biases]

    def _of_scores(self, grad: Any, x: Any, rows: Any, table: Tensor, to: Any) -> Tensor:
        """The gradient of a table whose products with ``x`` are scores with this one; that of ``x`` is added ``to``.

        ``rows`` are those of the table in float32, one for every column.
        """
        count, scale = table.shape[-2], self.problem.scale
        grad, rows = _first(grad, count), rows if rows.shape[-2] == count else rows[..., :count, :]
        if table.dim() == 3:
            own = repeat_heads(x, grad.shape[1])
            found = (grad.transpose(-1, -2) @ own).sum(0).mul_(scale)
            to.add_(_sum_heads(grad @ rows, x.shape[1]), alpha=scale)
            return found.to(table.dtype)
        grad = _sum_heads(grad, x.shape[1]).flatten(0, 2)
        found = torch.addmm(grad.new_empty(()), grad.t(), x.flatten(0, 2), beta=0, alpha=scale)
        if to.dtype == torch.float32:
            to.flatten(0, 2).addmm_(grad, rows, alpha=scale)
        else:
            to.add_((grad @ rows).view(to.shape), alpha=scale)
        return found.to(table.dtype)

    @staticmethod
    def _of_values(sums: Tensor, grad: Tensor | None, table: Tensor) -> Tensor:
        if grad is None:
            return torch.zeros_like(table)
        sums = _first(sums, table.shape[-2])
        if table.dim() == 3:
            return (sums.transpose(-1, -2) @ grad).sum(0).to(table.dtype)
        return (sums.flatten(0, 2).t() @ grad.flatten(0, 2)).to(table.dtype)


def whole_outputs(outputs: Outputs) -> Outputs:
    """Outputs as the kernels read them, contiguous: hooks on saved tensors may bring them back with other strides."""
    return Outputs(*(None if x is None else x.contiguous() for x in outputs))


def joined(tables: Sequence[Tensor | None], sizes: tuple[int, ...], heads: int, dim: int = -2) -> Tensor | None:
    """One table with a row for every column, of those of all parts; None without tables.

    Axis -2 or -1 counts rows. A single part stays unchanged, because its last column needs no row of zeros.
    """
    first = next((table for table in tables if table is not None), None)
    if first is None or len(tables) == 1:
        return first
    dims = max(table.dim() for table in tables if table is not None)
    found = []
    for table, size in zip(tables, sizes, strict=True):
        if table is None:
            shape = (size + 1, first.shape[-1]) if dim == -2 else (size + 1,)
            rows = first.new_zeros(shape) if first.dim() + dim < 2 else first.new_zeros(*first.shape[:3], size + 1)
        else:
            rows = with_zero_row(table, dim)
        found.append(rows.expand(heads, *rows.shape) if rows.dim() < dims else rows)
    return torch.cat(found, dim)


def _single(x: Tensor) -> Tensor:
    """``x`` in float32, contiguous."""
    if x.is_contiguous():
        return x.float()
    # ``to`` returns a tensor that is float32 already unchanged, and so with any strides
    return x.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def padded(table: Tensor, columns: int, dim: int = -2) -> Tensor:
    """The table with a row for every column."""
    return table if table.shape[dim] == columns else with_zero_row(table, dim)


def _product(x: Tensor, rows: Tensor, scale: float = 1.0) -> Tensor:
    """The product scale · x·rowsᵀ, contiguous ``[B, H, N, columns]``."""
    if rows.dim() == 3:
        return x @ (rows if scale == 1.0 else rows * scale).transpose(-1, -2)
    found = torch.addmm(x.new_empty(()), x.flatten(0, 2), rows.t(), beta=0, alpha=scale)  # one operator, not two
    return found.view(*x.shape[:3], rows.shape[0])


def _sum_heads(x: Tensor, heads: int) -> Tensor:
    """``[B, H, N, D]`` summed over the heads that share a key head, ``[B, H_kv, N, D]``."""
    return x if x.shape[1] == heads else x.unflatten(1, (heads, -1)).sum(2)


def _first(x: Tensor, columns: int) -> Tensor:
    """The first columns, as many as a table has rows."""
    return x if x.shape[-1] == columns else x[..., :columns]
