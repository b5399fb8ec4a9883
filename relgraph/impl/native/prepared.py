"""A call whose struct lacks nothing but addresses: little Python and no operator of torch is around the kernels.

This pays on small calls. It takes tensors as they are: tables of one part, no dropout, no function of scores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Given
from relgraph.impl import op
from relgraph.impl.native import build
from relgraph.impl.native.problem import ProblemStructs, laid_out_as, reads_as_it_is
from relgraph.impl.native.structs import CProblem, CTensor
from relgraph.impl.problem import Outputs
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
        as_given = [x for x in tensors if x is not None]
        self.copied = {
            name for name, x in zip(self.names, as_given, strict=True) if name != "attn_mask" and not reads_as_it_is(x)
        }  # fmt: skip
        self.differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in tensors if x is not None)
        problem = op.problem_of(tensors, call.plan, *self.rest, memo_of(call.plan))
        structs = ProblemStructs(problem)
        self.kept = structs.layout, structs.numbers_kept()
        self.filled: Any = structs.struct
        self.rows, self.dtype = problem.query.shape[:3], problem.dtype
        output = laid_out_as(call.query, call.value.shape[-1])
        self.output = output.shape, output.stride()
        self.filled.output = CTensor(0, *output.stride()[:3])
        self.sums = (*self.rows, self.columns) if self.columns else (0,)
        if self.columns:
            self.filled.sums = CTensor(0, *output.new_empty(self.sums).stride()[:3])
        self.filled.workspace_numbers = build.kernels().library.relgraph_workspace(ctypes.byref(self.filled))
        self.room = self.filled.threads * self.filled.workspace_numbers

    @staticmethod
    def fits(call: Call, given: Given) -> bool:
        """Whether the call takes the tensors that are given, each as it is, and no others."""
        tables, plan, mask = call.tables[0], call.plan, call.mask
        if len(call.tables) > 1 or plan.edges_only or plan.by_function or tables.batched or call.keep is not None:
            return False
        if call.dropout_p or call.need_mass or call.score is not DOT or isinstance(call.q_offset, Tensor):
            return False
        if any(isinstance(x, (Tensor, tuple)) and name not in _FIELDS for name, x in given.items()):
            return False
        dtype, inputs = call.query.dtype, (call.query, call.key, call.value)
        if dtype not in (torch.float32, torch.float64) or (mask is not None and mask.dtype not in (dtype, torch.bool)):
            return False
        if tables.bias is not None and tables.key is None and call.query.shape[0] > 1:
            return False  # the kernels write out biases that batch rows share
        if plan.k_len >= 512 or not all(map(reads_as_it_is, inputs)):  # more keys need panels, and no preparation
            return False
        return all(x is None or (x.numel() and x.dtype == dtype) for x in (*inputs, *tables))

    def answer(self, given: Given, plan: LabelPlan) -> Answer:
        """The answer to a call of this form over labels of this plan."""
        tensors = [given[name] for name in self.names]
        if not self.differentiates:
            output, lse, *_ = self._run(tensors)
            return Answer(output, lse)
        if self.packed:
            tensors[:3] = [x.transpose(0, 1)[None] for x in tensors[:3]]
        if self.mask_shape is not None:
            tensors[-1] = tensors[-1].view(self.mask_shape)
        output, lse, *_ = op.with_gradients(
            "native", tensors, self.places, (plan, *self.rest, memo_of(plan)), self._run
        )
        return Answer(output, lse)

    def _run(self, tensors: Sequence[Tensor]) -> Outputs:
        struct, held = CProblem.from_buffer_copy(self.filled), []
        for name, x in zip(self.names, tensors, strict=True):
            if name in self.copied:
                x = x.contiguous()
                held.append(x)
            if name == "attn_mask":
                struct.mask = x.data_ptr()
            else:
                getattr(struct, _FIELDS[name]).data = x.data_ptr()
        dtype = self.dtype
        output = torch.empty_strided(*self.output, dtype=dtype, device="cpu")
        lse, sums = torch.empty(self.rows, dtype=dtype, device="cpu"), torch.empty(self.sums, dtype=dtype, device="cpu")
        workspace = torch.empty(self.room, dtype=dtype, device="cpu")
        struct.output.data, struct.lse, struct.workspace = output.data_ptr(), lse.data_ptr(), workspace.data_ptr()
        if self.columns:
            struct.sums.data = sums.data_ptr()
        build.kernels().library.relgraph_forward(ctypes.byref(struct))
        return Outputs(output, lse, sums, None)
