"""The terms of tables: B and C before the kernels, the value term after them, and the gradients of all of these.

:class:`Terms` is plain torch, without autograd, in as few operators as possible, because each costs the host some
microseconds in every call. B and C are made again in backward, which costs less than keeping them. Columns are those of
B, C and the sums by label. A table has a row for each column, or for all but the last, which is then zero, for pairs
without a label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Call, Tables
from relgraph.impl import op
from relgraph.impl.problem import Outputs, Problem
from relgraph.impl.terms import repeat_heads, with_zero_row

FARTHEST_ROW = 1 << 23
"""From this stride on, rows are copied: 128 of them pass 2**30 elements."""


def run(call: Call, kernels: str, tables: Tables, columns: int) -> Outputs:
    """Run the primitive by these kernels: output with the value term, log-sum-exp, and the sums by label.

    Tables have a row for each of the ``columns`` of B, C and the sums, or for all but the last.
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
        shape = *problem.query.shape[:3], problem.columns
        if self.queries is not None and self.key_rows is not None:
            found = _product(self.queries, self.key_rows, problem.scale)
        if problem.label_biases is not None:
            bias = problem.label_biases if problem.label_biases.dim() == 1 else problem.label_biases[:, None]
            bias = padded(bias, problem.columns, -1)
            found = bias.float().expand(*shape).contiguous() if found is None else found.add_(bias)
        if dead is not None:
            found = problem.query.new_zeros(shape, dtype=torch.float32) if found is None else found
            found = found.masked_fill(dead, float("-inf"))
        return found

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

    def gradients(
        self, kernels: Callable[[Outputs, Outputs], list[Tensor | None]], outputs: Outputs, incoming: Outputs
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradients in the order that :func:`relgraph.impl.op.plug` requires.

        Args:
            kernels: gives the gradients of query, key, value, B and C, from its own outputs and the gradients of these,
                all contiguous, gradients float32; those of query and key are changed in place.
            outputs: the outputs of forward.
            incoming: the gradients of the outputs.
        """
        problem, table = self.problem, self.problem.label_values
        # hooks on saved tensors may bring them back with other strides
        outputs = Outputs(*(None if x is None else x.contiguous() for x in outputs))
        output, lse, sums = (None if grad is None else _single(grad) for grad in incoming[:3])
        if table is not None and output is not None:
            more = _product(output, padded(table, problem.columns).float())
            sums = more if sums is None else sums + more
        plain = outputs if table is None else outputs._replace(output=outputs.plain, plain=None)
        dq, dk, dv, db, dc = kernels(plain, Outputs(output, lse, sums, None))
        of_keys = of_values = of_queries = of_biases = None
        if problem.label_keys is not None:
            of_keys = self._of_scores(db, self.queries, self.key_rows, problem.label_keys, dq)
        if problem.label_queries is not None:
            of_queries = self._of_scores(dc, self.keys, self.query_rows, problem.label_queries, dk)
        if problem.label_biases is not None:
            assert db is not None
            summed = db.sum((0, 2) if problem.label_biases.dim() == 2 else (0, 1, 2))
            of_biases = _first(summed, problem.label_biases.shape[-1]).to(problem.label_biases.dtype)
        if table is not None:
            of_values = self._of_values(outputs.sums, output, table)
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


def near_rows(x: Tensor) -> Tensor:
    """``x`` with contiguous rows, so near to each other that offsets within a tile fit 32 bits."""
    return x if (x.stride(-1) == 1 or x.shape[-1] == 1) and x.stride(-2) < FARTHEST_ROW else x.contiguous()


def strides(name: str, x: Tensor) -> dict[str, int]:
    """Strides of batch rows, heads and rows, by the names of the kernels' parameters."""
    return dict(zip((f"{name}_b", f"{name}_h", f"{name}_n"), x.stride(), strict=False))


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
            shape = list(first.shape)
            shape[dim] = size + 1
            rows = first.new_zeros(shape)
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
