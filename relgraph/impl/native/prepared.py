"""A call whose struct lacks nothing but addresses: little Python and no operator of torch is around the kernels.

This pays on small calls. It takes tensors as they are: tables of one part, no dropout, no function of scores.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Given
from relgraph.impl import op
from relgraph.impl.native import build
from relgraph.impl.native.problem import ProblemStructs, laid_out_as
from relgraph.impl.native.structs import CProblem, CTensor
from relgraph.plan import LabelPlan, memo_of
from relgraph.score import DOT

_FIELDS = {
    "query": "query", "key": "key", "value": "value", "key_table": "label_keys", "value_table": "label_values",
    "bias_table": "label_biases", "attn_mask": "mask",
}  # fmt: skip
"""The tensors of such a call, and where a struct has them; in the order of a problem."""


class Prepared:
    """What calls of one form share with each other, over labels of one plan, which it does not hold."""

    def __init__(self, call: Call, given: Given) -> None:
        self.names = [name for name in _FIELDS if given.get(name) is not None]
        self.packed = given["query"].dim() == 3
        self.mask_shape = None if call.mask is None else call.mask.shape
        tables = call.tables[0]
        self.columns = call.plan.columns if tables.value is not None else 0
        tensors, header = op.flat(
            call, columns=call.plan.columns, need_sums=bool(self.columns), label_keys=tables.key,
            label_values=tables.value, label_biases=tables.bias,
        )  # fmt: skip
        self.rest = header, call.scale, 0.0, None
        self.places = [x is not None for x in tensors]
        self.differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in tensors if x is not None)
        problem = op.problem_of(tensors, call.plan, *self.rest, memo_of(call.plan))
        structs = ProblemStructs(problem)
        self.kept = structs.layout, structs.numbers_kept()
        self.filled: Any = structs.struct
        self.rows, self.dtype = problem.query.shape[:3], problem.dtype
        output = laid_out_as(call.query, call.value.shape[-1])
        self.output = output.shape, output.stride()
        batch, heads, queries = self.rows
        self.filled.output = CTensor(0, *output.stride()[:3])
        self.filled.sums = CTensor(0, heads * queries * self.columns, queries * self.columns, self.columns)
        self.sums = batch * heads * queries * self.columns
        self.filled.workspace_numbers = build.kernels().library.relgraph_workspace(ctypes.byref(self.filled))
        self.scratch = self.sums + self.filled.threads * self.filled.workspace_numbers

    @staticmethod
    def fits(call: Call) -> bool:
        """Whether the call takes its tensors as they are."""
        tables, plan, mask = call.tables[0], call.plan, call.mask
        others = call.value_map, call.edge, call.keep, call.dropout_seed, tables.query, tables.rows
        if len(call.tables) > 1 or plan.edges_only or any(x is not None for x in others) or tables.batched:
            return False
        if call.dropout_p or call.need_mass or call.score is not DOT or isinstance(call.q_offset, Tensor):
            return False
        dtype, inputs = call.query.dtype, (call.query, call.key, call.value)
        if dtype not in (torch.float32, torch.float64) or (mask is not None and mask.dtype not in (dtype, torch.bool)):
            return False
        as_they_are = all(x.numel() and x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] for x in inputs)
        tables = [x for x in (tables.key, tables.value, tables.bias) if x is not None]
        small = call.plan.k_len < 512  # larger ones need panels, and have no use for this
        return small and as_they_are and all(x.numel() and x.dtype == dtype and x.is_contiguous() for x in tables)

    def answer(self, given: Given, plan: LabelPlan) -> Answer:
        """The answer to a call of this form over labels of this plan."""
        tensors = [given[name] for name in self.names]
        if self.differentiates:
            return self._with_gradients(tensors, plan)
        struct = CProblem.from_buffer_copy(self.filled)
        for name, x in zip(self.names, tensors, strict=True):
            if name == "attn_mask":
                struct.mask = x.data_ptr()
            else:
                getattr(struct, _FIELDS[name]).data = x.data_ptr()
        output = torch.empty_strided(*self.output, dtype=self.dtype)
        lse, scratch = torch.empty(self.rows, dtype=self.dtype), torch.empty(self.scratch, dtype=self.dtype)
        struct.output.data, struct.lse, at = output.data_ptr(), lse.data_ptr(), scratch.data_ptr()
        struct.sums.data = at if self.sums else None
        struct.workspace = at + self.sums * self.dtype.itemsize
        build.kernels().library.relgraph_forward(ctypes.byref(struct))
        return Answer(output, lse)

    def _with_gradients(self, tensors: list[Tensor], plan: LabelPlan) -> Answer:
        if self.packed:
            tensors[:3] = [x.transpose(0, 1)[None] for x in tensors[:3]]
        if self.mask_shape is not None:
            tensors[-1] = tensors[-1].view(self.mask_shape)
        given = iter(tensors)
        placed = [next(given) if there else None for there in self.places]
        outputs = op.direct("native", placed, (plan, *self.rest, memo_of(plan)))
        return Answer(outputs.output, outputs.lse)
