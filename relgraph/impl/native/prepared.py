"""A call whose struct lacks nothing but addresses: little Python and no operator of torch is around the kernels.

This pays on small calls. It takes tensors as they are: tables of one part, and no function of scores.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import c_int64
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relgraph.call import Answer, Call, Given
from relgraph.impl import op
from relgraph.impl.native import build
from relgraph.impl.native.attend import of_biases, of_table, splits_of
from relgraph.impl.native.edges import KERNELS, EdgeStructs, gates_of
from relgraph.impl.native.problem import (
    ProblemStructs,
    dense_rows,
    laid_out_as,
    mask_strides,
    may_need_panels,
    reads_as_it_is,
)
from relgraph.impl.native.structs import CEdges, CPart, CProblem, CTensor
from relgraph.impl.problem import Outputs
from relgraph.plan import LabelPlan, memo_of
from relgraph.score import DOT

_FIELDS = {
    "query": "query", "key": "key", "value": "value", "key_table": "label_keys", "value_table": "label_values",
    "query_table": "label_queries", "bias_table": "label_biases", "key_gate": "key_gates", "value_gate": "value_gates",
    "attn_mask": "mask",
}  # fmt: skip
"""The tensors of such a call, and where a struct has them; in the order of a problem."""

_GRADIENTS = {
    "query": "dq", "key": "dk", "value": "dv", "key_table": "d_label_keys", "value_table": "d_label_values",
    "query_table": "d_label_queries", "key_gate": "d_key_gates", "value_gate": "d_value_gates",
}  # fmt: skip
"""Where a struct of listed pairs has their gradients."""


def prepare(call: Call, given: Given, *, step: bool) -> Prepared | None:
    """The call, prepared for further ones of its form; None if it takes tensors otherwise than as they are given.

    A ``step`` of decoding has any number of keys.
    """
    if not _fits(call, given):
        return None
    if call.plan.edges_only:
        return _Listed(call, given) if _Listed.fits(call) else None
    return _AllPairs(call, given) if _AllPairs.fits(call, step=step) else None


def _fits(call: Call, given: Given) -> bool:
    """Whether the call takes the tensors that are given, and no others, in the dtype of its scores."""
    tables, inputs = call.tables[0], (call.query, call.key, call.value)
    if (
        len(call.tables) > 1
        or call.plan.by_function
        or tables.batched
        or call.keep is not None
        or call.need_mass
        or call.need_weights
    ):
        return False
    if call.score is not DOT or isinstance(call.q_offset, Tensor):
        return False
    known = {*_FIELDS, "sink"}  # a sink changes the answer afterwards
    if any(isinstance(x, (Tensor, tuple)) and name not in known for name, x in given.items()):
        return False
    dtype = call.query.dtype
    fits = dtype in (torch.float32, torch.float64)
    gates = call.gates or ()
    return fits and all(x is None or (x.numel() and x.dtype == dtype) for x in (*inputs, *tables, *gates))


class Prepared(ABC):
    """What calls of one form share with each other, over labels of one plan, which it does not hold."""

    kernels: str
    rest: tuple[list[int], float, float, None]
    places: Sequence[bool]
    differentiates: bool

    def __init__(self, given: Given) -> None:
        self.names = [name for name in _FIELDS if given.get(name) is not None]
        self.packed = given["query"].dim() == 3
        self.layouts = _layouts([given[name] for name in self.names])

    def answer(self, given: Given, plan: LabelPlan) -> Answer:
        """The answer to a call of this form over labels of this plan, in the layout of the caller."""
        tensors = self.tensors(given)
        if self.differentiates:
            rest = plan, *self.rest, memo_of(plan)
            how = op.How(self.kernels, rest, self.places, self.packed, self.run, self.backward)
            output, lse, *_ = op.with_gradients(how, tensors)
        else:
            output, lse, *_ = self.run(tensors)
        return Answer(output, lse)

    def tensors(self, given: Given) -> list[Tensor]:
        """The tensors of the problem."""
        return [given[name] for name in self.names]

    @abstractmethod
    def run(self, tensors: Sequence[Tensor]) -> Outputs:
        """The outputs."""

    def backward(self, tensors: Sequence[Tensor], outputs: Outputs, incoming: Outputs) -> list[Tensor | None] | None:
        """The gradients of the tensors, None for those that are not prepared.

        Hooks on saved tensors, such as those that offload them, may have given them another layout than that of the
        form, by which the struct steps.
        """
        as_it_was = _layouts(tensors[: len(self.names)]) == self.layouts
        return self._gradients(tensors, outputs, incoming) if as_it_was else None

    @abstractmethod
    def _gradients(self, tensors: Sequence[Tensor], outputs: Outputs, incoming: Outputs) -> list[Tensor | None] | None:
        """The gradients of tensors and outputs in the layout of the form."""


def _layouts(tensors: Sequence[Tensor]) -> list[Any]:
    """By what kernels step through tensors."""
    return [(x.stride(), x.dtype) for x in tensors]


class _AllPairs(Prepared):
    """Calls over all pairs."""

    kernels = "native"

    def __init__(self, call: Call, given: Given) -> None:
        super().__init__(given)
        self.mask_shape = None
        if call.mask is not None:
            self.mask_shape = call.mask.shape
            self.layouts[-1] = _layouts([call.mask])[0]
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
        self.output, self.filled.output = self._room(call.query, call.value.shape[-1])
        self.sums: Any = ((0,), (1,))
        if self.columns:
            self.sums, self.filled.sums = _room(call.query, self.columns)
        self.filled.workspace_numbers = build.kernels().library.relgraph_workspace(ctypes.byref(self.filled))
        self.backwards = self._of_backward(call) if self.differentiates else None

    def _of_backward(self, call: Call) -> Any:
        """The struct of backward; None if it is one that is not prepared."""
        tables = call.tables[0]
        struct = CProblem.from_buffer_copy(self.filled)
        struct.is_backward = struct.splits = 1
        struct.shares = 1
        learned_mask = call.mask is not None and call.mask.requires_grad
        shared_biases = tables.bias is not None and tables.key is None
        if (
            struct.sliced
            or learned_mask
            or shared_biases
            or splits_of(struct, struct.runs * struct.kv_heads, self.kept[0].most_blocks) > 1
        ):
            return None
        struct.given_output, struct.sums = self.filled.output, CTensor()
        rooms = [self._room(x, x.shape[3]) for x in (call.query, call.key, call.value)]
        self.of_inputs = [room for room, _ in rooms]
        struct.dq, struct.dk, struct.dv = [filled for _, filled in rooms]
        self.by_query: Any = ((0,), (1,))
        if tables.key is not None:
            self.by_query, struct.d_by_query = _room(call.query, call.plan.columns)
        if tables.value is not None:
            size, labels = call.value.shape[-1], tables.value.shape[-2]
            width = -(-(labels + 2) // 16) * 16
            self.padding = 2, width - labels - 2
            # its size counts for the room that a thread needs, and its address for whether there is one
            struct.turned_label_values = CTensor(1, 0, size * width * (tables.value.dim() > 2), width)
        struct.workspace_numbers = build.kernels().library.relgraph_workspace(ctypes.byref(struct))
        return struct

    def _room(self, like: Tensor, size: int) -> tuple[Any, Any]:
        """As the function :func:`_room`, in the layout of the caller."""
        room, filled = _room(like, size)
        if self.packed:
            (_, heads, rows, _), (_, head, row, one) = room
            room = (rows, heads, size), (row, head, one)
        return room, filled

    @staticmethod
    def fits(call: Call, *, step: bool) -> bool:
        """Whether the kernels read these tensors as they are."""
        tables, mask = call.tables[0], call.mask
        if call.dropout_p or tables.query is not None or call.gates is not None:
            return False
        if mask is not None and mask.dtype not in (call.query.dtype, torch.bool):
            return False
        if tables.bias is not None and tables.key is None and call.query.shape[0] > 1 and not step:
            return False  # the kernels write out biases that batch rows share
        if may_need_panels(call.plan, call.query, any_keys=step):
            return False
        return all(map(reads_as_it_is, (call.query, call.key, call.value)))

    def tensors(self, given: Given) -> list[Tensor]:
        """The tensors of the problem."""
        found = super().tensors(given)
        if self.mask_shape is not None and self.differentiates:
            found[-1] = found[-1].view(self.mask_shape)
        return found

    def answer_step(self, given: Given) -> Answer:
        """The answer to a step of decoding of this form, which has keys and an offset of its own."""
        labels, keys, mask = given["labels"], given["key"].shape[2], given.get("attn_mask")
        offset = given["q_offset"] if labels is None else labels.q_offset
        struct = CProblem.from_buffer_copy(self.filled)
        offsets, part = c_int64(offset), CPart.from_buffer_copy(struct.parts[0])
        part.offsets = struct.causal_offsets = ctypes.addressof(offsets)
        struct.parts = ctypes.pointer(part)
        struct.k_len = struct.most_keys = keys
        struct.causal = int(given.get("is_causal", False) and offset < keys - 1)
        if mask is not None:
            struct.mask_strides = mask_strides(mask)
        struct.workspace_numbers = build.kernels().library.relgraph_workspace(ctypes.byref(struct))
        output, lse, *_ = self.run(self.tensors(given), struct)
        return Answer(output, lse)

    def run(self, tensors: Sequence[Tensor], step: Any = None) -> Outputs:
        """The outputs; of a step, by its struct."""
        struct = CProblem.from_buffer_copy(self.filled) if step is None else step
        held, dtype = self._take(struct, tensors), self.dtype
        output = torch.empty_strided(*self.output, dtype=dtype, device="cpu")
        sums = torch.empty_strided(*self.sums, dtype=dtype, device="cpu")
        lse = torch.empty(self.rows, dtype=dtype, device="cpu")
        struct.output.data, struct.lse = output.data_ptr(), lse.data_ptr()
        if self.columns:
            struct.sums.data = sums.data_ptr()
        self._start(struct, build.kernels().library.relgraph_forward)
        del held  # the kernels have read it
        return Outputs(output, lse, sums, None)

    def _gradients(self, tensors: Sequence[Tensor], outputs: Outputs, incoming: Outputs) -> list[Tensor | None] | None:
        """The gradients of the tensors from those of output and log-sum-exp; None if other outputs have one."""
        grad, of_lse, *others = incoming
        if self.backwards is None or grad is None or any(x is not None for x in others):
            return None
        made = [(room[1], self.dtype) for room in (self.output, self.sums)[: 2 if self.columns else 1]]
        if _layouts([outputs.output, outputs.sums][: len(made)]) != made:
            return None
        struct = CProblem.from_buffer_copy(self.backwards)
        held, dtype = self._take(struct, tensors), self.dtype
        query = tensors[0]
        if self.packed:
            query, grad = (x.transpose(0, 1)[None] for x in (query, grad))  # [1, H, N, D]
        grad = dense_rows(grad, dtype)
        struct.output = struct.d_output = CTensor(grad.data_ptr(), *grad.stride()[:3])
        struct.given_output.data = outputs.output.data_ptr()
        if of_lse is not None:
            held.append(of_lse.contiguous())
            struct.d_lse = held[-1].data_ptr()
        dq, dk, dv = (torch.empty_strided(*room, dtype=dtype, device="cpu") for room in self.of_inputs)
        struct.dq.data, struct.dk.data, struct.dv.data = dq.data_ptr(), dk.data_ptr(), dv.data_ptr()
        found: dict[str, Tensor | None] = {"query": dq, "key": dk, "value": dv}
        by_name = dict(zip(self.names, tensors, strict=True))
        keys, values, biases = map(by_name.get, ("key_table", "value_table", "bias_table"))
        by_query = torch.empty_strided(*self.by_query, dtype=dtype, device="cpu")
        if keys is not None:
            struct.d_by_query.data = by_query.data_ptr()
        if values is not None:
            turned = torch.constant_pad_nd(values.transpose(-1, -2), self.padding)
            held.append(turned)
            struct.turned_label_values.data = turned.data_ptr()
        self._start(struct, build.kernels().library.relgraph_backward)
        del held  # the kernels have read it
        if keys is not None:
            found["key_table"] = of_table(by_query, query, keys).mul_(struct.scale)
        if values is not None:
            found["value_table"] = of_table(outputs.sums, grad, values)
        if biases is not None:
            found["bias_table"] = of_biases(by_query, biases)
        return [found.get(name) for name in self.names]

    def _take(self, struct: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Set the addresses of the tensors; return the copies of those that kernels cannot read."""
        held = []
        for name, x in zip(self.names, tensors, strict=True):
            if name in self.copied:
                x = x.contiguous()
                held.append(x)
            if name == "attn_mask":
                struct.mask = x.data_ptr()
            else:
                getattr(struct, _FIELDS[name]).data = x.data_ptr()
        return held

    def _start(self, struct: Any, function: Any) -> None:
        room = torch.empty(struct.threads * struct.workspace_numbers, dtype=self.dtype, device="cpu")
        struct.workspace = room.data_ptr()
        function(ctypes.byref(struct))


def _room(like: Tensor, size: int) -> tuple[Any, Any]:
    """Shape and strides of ``[B, H, N, size]``, in memory in the order of ``like``, and its struct without address."""
    room = laid_out_as(like, size)
    return (room.shape, room.stride()), CTensor(0, *room.stride()[:3])


def _rows_are_dense(x: Tensor) -> bool:
    """Whether the rows of a tensor, and of its gradient, are dense; where rows of x overlap the latter need not be."""
    return x.stride(-1) == 1 and torch.empty_like(x, device="meta").stride(-1) == 1


class _Listed(Prepared):
    """Calls over listed pairs."""

    kernels = KERNELS

    def __init__(self, call: Call, given: Given) -> None:
        super().__init__(given)
        tables, memo = call.tables[0], memo_of(call.plan)
        self.drops, self._backward = call.dropout_p > 0.0, None
        if self.drops:  # each answer draws its own seed
            call = replace(call, dropout_seed=torch.zeros((), dtype=torch.int64, device="cpu"))
        tensors, header = op.flat(
            call, columns=0, need_sums=False, label_keys=tables.key, label_values=tables.value,
            label_queries=tables.query, **({} if call.gates is None else gates_of(call.gates, call.query.dtype)),
        )  # fmt: skip
        self.rest = header, call.scale, call.dropout_p, None
        self.places = [x is not None for x in tensors]
        self.differentiates = torch.is_grad_enabled() and any(x.requires_grad for x in tensors if x is not None)
        structs = EdgeStructs(op.problem_of(tensors, call.plan, *self.rest, memo))
        self.pairs, self.filled = structs.pairs, structs.struct
        self.shape, self.rows = (*given["query"].shape[:-1], call.value.shape[-1]), call.query.shape[:3]
        self.dtype = call.query.dtype
        self.filled.output = self._strides(torch.empty(self.shape, dtype=self.dtype, device="cpu"))

    @staticmethod
    def fits(call: Call) -> bool:
        """Whether the kernels read these tensors as they are."""
        tables, csr = call.tables[0], call.plan.parts[0].csr
        if call.mask is not None or call.is_causal or tables.bias is not None or tables.rows is not None:
            return False
        dense = (call.query, call.key, call.value, *(x for x in (*tables, *(call.gates or ())) if x is not None))
        return csr is not None and csr.col.shape[0] > 0 and all(map(_rows_are_dense, dense))

    def tensors(self, given: Given) -> list[Tensor]:
        """The tensors of the problem, with the seed of dropout."""
        found = super().tensors(given)
        if self.drops:
            found.append(torch.randint(1 << 62, (), device="cpu"))
        return found

    def run(self, tensors: Sequence[Tensor]) -> Outputs:
        """The outputs."""
        struct = CEdges.from_buffer_copy(self.filled)
        output = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        lse = torch.empty(self.rows, dtype=self.dtype, device="cpu")
        room = torch.empty(struct.threads * struct.workspace_numbers, dtype=self.dtype, device="cpu")
        self._point(struct, tensors)
        struct.output.data, struct.lse, struct.workspace = output.data_ptr(), lse.data_ptr(), room.data_ptr()
        build.kernels().library.relgraph_edges_forward(ctypes.byref(struct))
        return Outputs(output, lse, None, None)

    def _gradients(self, tensors: Sequence[Tensor], outputs: Outputs, incoming: Outputs) -> list[Tensor | None]:  # noqa: ARG002
        """The gradients of the tensors; weights are computed again, so outputs are not needed."""
        filled, widths, numbers = self._for_gradients(tensors)
        struct = CEdges.from_buffer_copy(filled)
        self._point(struct, tensors)
        found: list[Any] = []
        for name, x in zip(self.names, tensors, strict=False):
            width = widths.get(name)
            made = torch.empty_like(x) if width is None else x.new_empty(struct.heads, *x.shape[-2:])
            getattr(struct, _GRADIENTS[name]).data = made.data_ptr()
            found.append(made)
        output, lse = incoming.output, incoming.lse
        if output is not None:
            output = output if output.stride(-1) == 1 else output.contiguous()
            struct.output = self._strides(output)
            struct.output.data = output.data_ptr()
        if lse is not None:
            lse = lse.contiguous()
            struct.lse = lse.data_ptr()
        rooms = [torch.empty(count, dtype=self.dtype, device="cpu") for count in numbers]
        struct.workspace, struct.label_parts, struct.key_parts = (room.data_ptr() for room in rooms)
        build.kernels().library.relgraph_edges_backward(ctypes.byref(struct))
        for at, name in enumerate(self.names):
            if name in widths and tensors[at].dim() == 2:  # all heads share the table
                found[at] = found[at].sum(0)
        return [*found, None] if self.drops else found

    def _for_gradients(self, tensors: Sequence[Tensor]) -> tuple[Any, dict[str, int], list[int]]:
        """The struct of backward, the width of each table, and the numbers of each kind of room; worked out once."""
        if self._backward is not None:
            return self._backward
        struct, widths = CEdges.from_buffer_copy(self.filled), {}
        for name, x in zip(self.names, tensors, strict=False):
            if name.endswith(("_table", "_gate")):
                labels, widths[name] = x.shape[-2:]
                setattr(struct, _GRADIENTS[name], CTensor(0, 0, labels * widths[name], widths[name]))
            else:
                setattr(struct, _GRADIENTS[name], self._strides(torch.empty_like(x)))
        struct.output = CTensor()
        struct.workspace_numbers = build.kernels().library.relgraph_edges_room(ctypes.byref(struct), 1)
        parts = struct.batch * struct.stretches * struct.heads * struct.labels * sum(widths.values())
        keys = struct.batch * struct.kv_heads * struct.k_len * (struct.size + struct.value_size)
        numbers = [struct.threads * struct.workspace_numbers, parts, (struct.stretches - 1) * keys]
        self._backward = struct, widths, numbers
        return self._backward

    def _point(self, struct: Any, tensors: Sequence[Tensor]) -> None:
        """Where the tensors are."""
        for name, x in zip(self.names, tensors, strict=False):
            getattr(struct, _FIELDS[name]).data = x.data_ptr()
        if self.drops:
            struct.seed = int(tensors[-1])

    def _strides(self, x: Tensor) -> ctypes.Structure:
        """A tensor in the layout of the caller, without its address."""
        return CTensor(0, 0, x.stride(1), x.stride(0)) if self.packed else CTensor(0, *x.stride()[:3])
