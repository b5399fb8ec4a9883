"""Checks before compiled kernels run. The kernels trust their arguments, so nothing wrong may reach them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from relgraph.impl.problem import Problem
from relgraph.plan import Csr, DistanceIds, FunctionIds, LabelPlan, Part, graph_at
from relgraph.plan.parts import FIRST
from relgraph.score import Activation

_ID_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def check_tensors(problem: Problem) -> None:
    """Check shapes and dtypes of a problem's tensors against each other and the plan."""
    batch, heads, q_len, size = problem.query.shape
    key, value, plan = problem.key, problem.value, problem.plan
    kv_heads, k_len = key.shape[1:3]
    if not problem.query.is_floating_point():
        raise ValueError(f"query must be floating, got {problem.query.dtype}")
    if problem.columns != plan.columns:
        raise ValueError(f"columns must be the plan's, {plan.columns}, got {problem.columns}")
    for name in ("label_queries", "key_gates", "value_gates", "vector_maps"):
        if getattr(problem, name) is not None:
            raise ValueError(f"{name} must be None over all pairs, got a tensor")
    shapes = [
        ("query", problem.query, (batch, heads, plan.q_len, size)),
        ("key", key, (batch, kv_heads, plan.k_len, size)),
        ("value", value, (batch, kv_heads, plan.k_len, value.shape[-1])),
        ("by_query", problem.by_query, (batch, heads, q_len, plan.columns)),
        ("by_key", problem.by_key, (batch, heads, k_len, plan.columns)),
    ]
    biases = problem.label_biases
    if biases is not None:
        rows = rows_of_tables(plan)
        shapes.append(("label_biases", biases, (rows,) if biases.dim() == 1 else (heads, rows)))
    shapes += _shapes_of_maps(problem) + _shapes_of_vectors(problem)
    if len(plan.parts) > 1:
        for name in ("score_maps", "value_maps"):
            if getattr(problem, name) is not None:
                raise ValueError(f"{name} must be None for a sum of labels, got a tensor")
    tables = ("label_keys", problem.label_keys, size), ("label_values", problem.label_values, value.shape[-1])
    for name, table, width in tables:
        if table is not None:
            wanted = rows_of_tables(plan), width
            shapes.append((name, table, wanted if table.dim() == 2 else (heads, *wanted)))
    if problem.label_values is not None and not problem.need_sums:
        raise ValueError("need_sums must be True with label_values, got False")
    _check_operands(problem, shapes, problem.query.dtype)
    if problem.by_query is not None and (biases is not None or problem.factor_keys is not None):
        raise ValueError("by_query must be None with label_biases or label_keys, got a tensor")
    _check_options(problem)


def _shapes_of_maps(problem: Problem) -> list[tuple[str, Tensor | None, tuple[int, ...]]]:
    """The wanted shapes of maps and of the weights of an additive score."""
    heads, size = problem.query.shape[1], problem.key.shape[-1]
    weights, maps, labels = problem.score_weights, problem.score_maps, problem.plan.num_labels[0]
    if (weights is not None) != isinstance(problem.score, Activation):
        raise ValueError(f"score_weights must be given with an activation and only then, got score={problem.score}")
    if weights is not None and maps is not None:
        raise ValueError("score_maps must be None with score_weights, got a tensor")
    shapes: list[tuple[str, Tensor | None, tuple[int, ...]]] = []
    if weights is not None:
        shapes.append(("score_weights", weights, (size,) if weights.dim() == 1 else (heads, size)))
    for name, x, width in (("score_maps", maps, size), ("value_maps", problem.value_maps, problem.value.shape[-1])):
        if x is not None:
            wanted = labels, width, width
            shapes.append((name, x, wanted if x.dim() == 3 else (heads, *wanted)))
    return shapes


def _shapes_of_vectors(problem: Problem) -> list[tuple[str, Tensor | None, tuple[int, ...]]]:
    """The wanted shapes of the vectors of listed pairs, and of what meets them in the score."""
    vectors, queries, csr = problem.vectors, problem.vector_queries, problem.plan.parts[0].csr
    if problem.vectors_in_score or (problem.score_weights is not None and queries is not None):
        raise ValueError("vectors in the score must be given by vector_queries, and not with score_weights")
    if vectors is None:
        if queries is not None or problem.vectors_in_value:
            raise ValueError("vectors must be given with vector_queries or in the value, got None")
        return []
    if csr is None or len(problem.plan.parts) > 1:
        raise ValueError("vectors must be of listed pairs of the only part")
    width = vectors.shape[-1]
    by_query = *problem.query.shape[:3], width
    return [("vectors", vectors, (csr.col.shape[0], width)), ("vector_queries", queries, by_query)]


def rows_of_tables(plan: LabelPlan) -> int:
    """How many rows a table has: a row of zeros after each part's labels, but not if there is one part."""
    return plan.columns - 1 if len(plan.parts) == 1 else plan.columns


def _check_operands(
    problem: Problem, shapes: Sequence[tuple[str, Tensor | None, tuple[int, ...]]], dtype: torch.dtype
) -> None:
    """Check tensors by name and wanted shape; query, key and value have this dtype, all others that of sums."""
    heads, kv_heads = problem.query.shape[1], problem.key.shape[1]
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(f"key must have a number of heads that divides those of query, {heads}, got {kv_heads}")
    for name, x, shape in shapes:
        if x is None:
            continue
        if not x.is_cpu:
            raise ValueError(f"{name} must be on the CPU, got {x.device.type}")
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(x.shape)}")
        wanted = dtype if name in ("query", "key", "value") else problem.dtype
        if x.dtype != wanted:
            raise ValueError(f"{name} must be {wanted}, got {x.dtype}")


def _check_options(problem: Problem) -> None:
    """Check masks, dropout and causal order."""
    plan, (batch, heads, q_len, _) = problem.plan, problem.query.shape
    full = (batch, heads, q_len, plan.k_len)
    for name, x in (("mask", problem.mask), ("keep", problem.keep)):
        if x is None:
            continue
        if x.dim() != 4 or any(n not in (1, m) for n, m in zip(x.shape, full, strict=True)):
            raise ValueError(f"{name} must broadcast to {list(full)}, got shape {list(x.shape)}")
        if not x.is_cpu or not (x.dtype == torch.bool or x.is_floating_point()):
            raise ValueError(f"{name} must be bool or floating on the CPU, got {x.dtype} on {x.device.type}")
    if problem.mask_gradient and (problem.mask is None or problem.mask.dtype == torch.bool):
        raise ValueError("mask must be floating if it needs a gradient, got none or one of bools")
    if problem.dropout_p > 0.0 and problem.keep is None and problem.seed is None:
        raise ValueError("seed or keep must be given with dropout_p, got neither")
    if problem.seed is not None and problem.seed.numel() not in (1, 5):
        raise ValueError(f"seed must have 1 number, or 5 with origins, got {problem.seed.numel()}")
    if isinstance(problem.causal, Tensor):
        _check_offset("offset", problem.causal, batch if plan.q_ptr is None else plan.q_ptr.shape[0] - 1)


def check_plan(plan: LabelPlan, batch: int) -> None:
    """Check everything in a plan that kernels use as an index."""
    if (plan.q_ptr is None) != (plan.k_ptr is None):
        raise ValueError("q_ptr and k_ptr must be given together")
    graphs = batch
    if plan.q_ptr is not None and plan.k_ptr is not None:
        _check_ptr("q_ptr", plan.q_ptr, plan.q_len)
        _check_ptr("k_ptr", plan.k_ptr, plan.k_len)
        if plan.q_ptr.shape != plan.k_ptr.shape:
            raise ValueError(f"k_ptr must have as many borders as q_ptr, {len(plan.q_ptr)}, got {len(plan.k_ptr)}")
        if batch != 1:
            raise ValueError(f"query of a packed batch must have batch size 1, got {batch}")
        graphs = plan.q_ptr.shape[0] - 1
    for part in plan.parts:
        if isinstance(part.offset, Tensor):
            _check_offset("q_offset", part.offset, graphs)
        _check_ids(plan, part, batch)
        if part.csr is not None:
            _check_pairs(plan, part, part.csr, batch)


def _check_ptr(name: str, ptr: Tensor, length: int) -> None:
    numbers = ptr.tolist()
    rising = all(a <= b for a, b in itertools.pairwise(numbers))
    if ptr.dim() != 1 or len(numbers) < 1 or numbers[0] != 0 or numbers[-1] != length or not rising:
        raise ValueError(f"{name} must rise from 0 to {length}, got {numbers[:8]}")


def _check_offset(name: str, offset: Tensor, graphs: int) -> None:
    if offset.numel() not in (1, graphs) or offset.is_floating_point():
        raise ValueError(f"{name} must have 1 or {graphs} integers, got {offset.numel()} of {offset.dtype}")


def _check_ids(plan: LabelPlan, part: Part, batch: int) -> None:
    if isinstance(part.ids, DistanceIds):
        if not part.ids.lookup:
            raise ValueError("lookup must have at least one id, got none")
        return _check_range("lookup", min(part.ids.lookup), max(part.ids.lookup), -2, part.num_labels)
    if isinstance(part.ids, FunctionIds):
        raise ValueError("ids must be by distance or written out, got ids by function, which kernels cannot call")
    ids, starts = part.ids.ids, part.ids.starts
    if ids.dtype not in _ID_TYPES:
        raise ValueError(f"ids must be signed integers, got {ids.dtype}")
    if ids.numel():
        low, high = torch.aminmax(ids)
        _check_range("ids", int(low), int(high), -2, part.num_labels)
    if plan.q_ptr is None or plan.k_ptr is None:
        if (
            starts is not None
            or ids.dim() != 3
            or ids.shape[0] not in (1, batch)
            or ids.shape[1:] != (plan.q_len, plan.k_len)
        ):
            raise ValueError(f"ids must have shape [1 or {batch}, {plan.q_len}, {plan.k_len}], got {list(ids.shape)}")
        return None
    sizes = plan.q_ptr.diff() * plan.k_ptr.diff()
    if starts is None or ids.dim() != 1 or starts.dim() != 1 or starts.shape[0] < len(sizes):
        raise ValueError(f"starts must have the beginning of each of {len(sizes)} graphs' ids in a flat tensor")
    starts = starts[: len(sizes)]
    if len(sizes) and (int(starts.min()) < 0 or int((starts + sizes).max()) > ids.shape[0]):
        raise ValueError(f"starts must leave room for each graph's ids among {ids.shape[0]}")
    return None


def _check_pairs(plan: LabelPlan, part: Part, csr: Csr, batch: int) -> None:
    if csr.batch not in (1, batch):
        raise ValueError(f"listed pairs must be of 1 or {batch} batch rows, got {csr.batch}")
    check_rows(plan, csr)
    pairs = csr.col.shape[0]
    if pairs == 0:
        return _check_ptr("row_ptr", csr.row_ptr[[0, -1]], 0)
    counts = csr.row_ptr.diff()
    if int(csr.row_ptr[0]) != 0 or int(csr.row_ptr[-1]) != pairs or bool((counts < 0).any()):
        raise ValueError(f"row_ptr must rise from 0 to {pairs}")
    ranges = [("col", csr.col, 0, plan.k_len), ("ids", csr.ids, -1, part.num_labels), ("role", csr.role, 0, 3)]
    if plan.edges_only:  # elsewhere nothing is read by it, and a block of rows keeps the numbers of the whole
        ranges.append(("order", csr.order, 0, pairs))
    for name, x, low, stop in ranges:
        _check_range(name, int(x.min()), int(x.max()), low, stop)
    if csr.role.dtype != torch.int8:
        raise ValueError(f"role must be int8, got {csr.role.dtype}")
    row = torch.repeat_interleave(counts)
    if plan.q_ptr is not None and plan.k_ptr is not None:
        graph = graph_at(plan.q_ptr, row)
        if bool(((csr.col < plan.k_ptr[graph]) | (csr.col >= plan.k_ptr[graph + 1])).any()):
            raise ValueError("col must name keys of the query's own graph")
    place = row * plan.k_len + csr.col
    if bool((place.diff() < 0).any()):
        raise ValueError("col must rise within each query row")
    if not plan.edges_only and bool((place[csr.role == FIRST].diff() == 0).any()):
        raise ValueError("role must name one first entry per pair")
    return None


def check_rows(plan: LabelPlan, csr: Csr) -> None:
    """Check how many rows and pairs listed pairs have."""
    rows, pairs = csr.batch * plan.q_len, csr.col.shape[0]
    if csr.row_ptr.shape != (rows + 1,):
        raise ValueError(f"row_ptr must have {rows + 1} borders, got shape {list(csr.row_ptr.shape)}")
    for name, x in (("col", csr.col), ("ids", csr.ids), ("role", csr.role), ("order", csr.order)):
        if x.shape != (pairs,):
            raise ValueError(f"{name} must have {pairs} numbers, got shape {list(x.shape)}")
        if x.dtype not in _ID_TYPES:
            raise ValueError(f"{name} must have integers, got {x.dtype}")


def check_listed(problem: Problem) -> None:
    """Check the shapes of a problem over listed pairs."""
    (batch, heads, _, _), (_, kv_heads, _, size) = problem.query.shape, problem.key.shape
    plan, csr, labels = problem.plan, problem.plan.parts[0].csr, problem.plan.num_labels[0]
    if csr is None or csr.batch not in (1, batch) or len(plan.parts) != 1:
        raise ValueError(f"plan must have one part, which lists the pairs of 1 or {batch} batch rows")
    vectors, channels = problem.vectors, problem.value.shape[-1]
    numbers = 0 if vectors is None else vectors.shape[-1]
    shapes = [
        ("query", problem.query, (batch, heads, plan.q_len, size + numbers * problem.vectors_in_score)),
        ("key", problem.key, (batch, kv_heads, plan.k_len, size)),
        ("value", problem.value, (batch, kv_heads, plan.k_len, channels)),
        ("by_query", problem.by_query, (batch, heads, plan.q_len, problem.columns)),
        ("by_key", problem.by_key, (batch, heads, plan.k_len, problem.columns)),
        ("vectors", vectors, (csr.col.shape[0], numbers)),
    ]
    for name, x, wanted in (
        ("label_keys", problem.label_keys, size), ("label_values", problem.label_values, channels),
        ("label_queries", problem.label_queries, size), ("key_gates", problem.key_gates, size),
        ("value_gates", problem.value_gates, channels),
    ):  # fmt: skip
        if x is not None:
            shapes.append((name, x, (labels, wanted) if x.dim() == 2 else (heads, labels, wanted)))
    shapes += _shapes_of_maps(problem)
    maps = problem.vector_maps
    if maps is not None:
        shapes.append(("vector_maps", maps, (numbers, size) if maps.dim() == 2 else (heads, numbers, size)))
        if vectors is None or problem.score_weights is None or problem.vectors_gradient:
            raise ValueError("vector_maps must come with score_weights and with vectors that have no gradient")
    if problem.score_weights is not None and (problem.label_queries is not None or problem.vectors_in_score):
        raise ValueError("label_queries and vectors in the score must be left out with score_weights")
    _check_operands(problem, shapes, problem.dtype)
    _check_options(problem)
    if problem.columns not in (0, labels):
        raise ValueError(f"columns must be 0 or {labels}, got {problem.columns}")


def _check_range(name: str, low: int, high: int, lowest: int, stop: int) -> None:
    if low < lowest or high >= stop:
        raise ValueError(f"{name} must be in [{lowest}, {stop}), got numbers from {low} to {high}")
