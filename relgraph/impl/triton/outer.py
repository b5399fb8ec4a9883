"""Tables with a batch axis: B, C and the value term in plain torch around the primitive, differentiated by autograd.

The other tables go into the primitive, see :mod:`relgraph.impl.triton.tables`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from relgraph.call import Call, Tables
from relgraph.impl.terms import add_value_tables, query_tables, score_tables


class Outer:
    """The terms that these tables add to one call.

    Attributes:
        has_values: whether there is a value term, which needs the sums by label.
    """

    def __init__(self, call: Call, tables: Sequence[Tables], sizes: Sequence[int], columns: int) -> None:
        """``sizes`` are the numbers of rows of the tables of each part; kernels know the first columns of B and C."""
        self._call, self._tables, self._sizes, self._columns = call, tables, sizes, columns
        self.has_values = any(table.value is not None for table in tables)

    def by_query(self, rows: Tensor | None) -> Tensor | None:
        """B, including given scores by row, ``[B, H, N_q, columns]``, or None."""
        if all(table.key is None and table.bias is None for table in self._tables):
            return rows
        found = score_tables(self._call.query.float(), self._tables, self._sizes, self._call.scale)
        assert found is not None
        found = found[..., : self._columns]
        return found if rows is None else found + rows

    def by_key(self) -> Tensor | None:
        """C, ``[B, H, N_k, columns]``, or None."""
        if all(table.query is None for table in self._tables):
            return None
        call = self._call
        found = query_tables(call.key.float(), call.query.shape[1], self._tables, self._sizes, call.scale)
        assert found is not None
        return found[..., : self._columns]

    def with_value_term(self, output: Tensor, sums: Tensor) -> Tensor:
        """The output and Σ_r P[i, r]·a^V[r]."""
        return add_value_tables(output, sums, self._tables, self._sizes) if self.has_values else output
