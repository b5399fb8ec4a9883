"""The split term in blocks of query rows, recomputed in backward: memory n·(d+R) for any labels."""

from __future__ import annotations

import torch

from relgraph.call import Answer, Call, accumulation_dtype
from relgraph.impl import budget, op
from relgraph.impl.chunked.blocks import backward, forward
from relgraph.impl.eager import rows
from relgraph.impl.terms import answer, query_tables, score_tables

op.plug("chunked", forward, backward, impl="chunked", instead="impl='dense' or 'reference'")


def attend(call: Call) -> Answer:
    """Attention block by block: with the split term on a CPU and in traced code, by rows of ``dense`` elsewhere."""
    traced = torch.compiler.is_compiling()  # rows break the graph, and their number would fix the exported lengths
    if rows.needed(call) or (budget.block_bytes(call.query.device) and not traced):
        return rows.attend(call)
    dtype, sizes = accumulation_dtype(call.query.dtype), call.plan.num_labels
    by_query = score_tables(call.query, call.tables, sizes, call.scale, dtype)
    by_key = query_tables(call.key, call.query.shape[1], call.tables, sizes, call.scale, dtype)
    values = any(tables.value is not None for tables in call.tables)
    outputs = op.run(call, "chunked", columns=call.plan.columns, need_sums=values, by_query=by_query, by_key=by_key)
    return answer(call, outputs, call.tables, sizes)
