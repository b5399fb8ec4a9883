"""The structs that both languages share: those of ``problem.h`` and ``edges.h``, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int64, c_void_p


class CTensor(ctypes.Structure):
    """``Tensor`` of problem.h."""

    _fields_ = [("data", c_void_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64)]


class CPart(ctypes.Structure):
    """``Part`` of problem.h."""

    _fields_ = [
        ("num_labels", c_int64), ("first_column", c_int64), ("offsets", c_void_p), ("offset_step", c_int64),
        ("first_distance", c_int64), ("lookup_length", c_int64), ("affine", c_int64), ("lookup", c_void_p),
        ("ids", c_void_p), ("id_bytes", c_int64), ("ids_step", c_int64), ("starts", c_void_p), ("row_ptr", c_void_p),
        ("col", c_void_p), ("listed", c_void_p), ("role", c_void_p), ("list_step", c_int64), ("full", c_int64),
    ]  # fmt: skip


class CProblem(ctypes.Structure):
    """``Problem`` of problem.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "bytes", "batch", "heads", "kv_heads", "q_len", "k_len", "size", "value_size", "columns", "graphs",
        )),
        ("q_ptr", c_void_p), ("k_ptr", c_void_p), ("num_parts", c_int64), ("parts", POINTER(CPart)),
        *((name, CTensor) for name in ("query", "key", "value", "by_query", "by_key")),
        *((name, CTensor) for name in ("label_biases", "pair_biases")),
        *((name, CTensor) for name in ("label_values", "turned_label_values", "d_output")),
        ("mask", c_void_p), ("mask_kind", c_int64), ("mask_strides", c_int64 * 4),
        ("keep", c_void_p), ("keep_strides", c_int64 * 4), ("seed", c_int64), ("origin", c_int64 * 4),
        ("causal", c_int64), ("causal_offsets", c_void_p), ("causal_step", c_int64),
        ("scale", c_double), ("dropout_p", c_double), ("score_kind", c_int64), ("score_parameter", c_double),
        *((name, CTensor) for name in ("output", "sums", "mass")), ("lse", c_void_p), ("is_backward", c_int64),
        *((name, CTensor) for name in ("given_output", "given_sums", "given_mass")), ("d_lse", c_void_p),
        *((name, CTensor) for name in ("dq", "dk", "dv", "d_by_query", "d_by_key")),
        ("dk_split", c_int64), ("dv_split", c_int64), ("d_by_key_split", c_int64),
        ("d_label_biases", CTensor), ("d_pair_biases", CTensor), ("shares", c_int64),
        ("blocks", c_void_p), ("num_blocks", c_int64), ("block_rows", c_int64), ("block_ptr", c_void_p),
        ("run_graphs", c_void_p), ("runs", c_int64), ("splits", c_int64), ("most_keys", c_int64),
        ("workspace", c_void_p), ("workspace_numbers", c_int64), ("threads", c_int64), ("gemm", c_void_p),
        ("parallel", c_void_p), ("blocked", c_void_p), ("blocked_half", c_void_p), ("release", c_void_p),
        ("half", c_int64), ("step", c_int64), ("panel", c_int64), ("panels", c_int64), ("turned_keys", c_void_p),
        ("turned_values", c_void_p), ("key_rows", c_void_p), ("value_rows", c_void_p),
    ]  # fmt: skip


class CPairs(ctypes.Structure):
    """``EdgePairs`` of edges.h."""

    _fields_ = [
        *((name, c_int64) for name in ("own", "count", "rows")),
        *((name, c_void_p) for name in ("row_ptr", "col", "ids")),
    ]


class CEdges(ctypes.Structure):
    """``EdgeProblem`` of edges.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "bytes", "batch", "heads", "kv_heads", "q_len", "k_len", "size", "value_size", "columns", "edge_size",
        )),
        ("pairs", POINTER(CPairs)),
        *((name, CTensor) for name in ("query", "key", "value", "by_query", "edge_query")),
        *((name, CTensor) for name in ("label_keys", "label_values", "label_queries")),
        ("attr", c_void_p), ("attr_stride", c_int64),
        ("added", c_void_p), ("added_step", c_int64), ("factor", c_void_p), ("factor_step", c_int64),
        ("seed", c_int64), ("origin", c_int64 * 4), ("threshold", c_int64),
        ("scale", c_double), ("kept_factor", c_double),
        ("score_kind", c_int64), ("score_parameter", c_double),
        *((name, CTensor) for name in ("output", "sums", "mass", "edge_sums")),
        ("lse", c_void_p),
        *((name, CTensor) for name in ("dq", "dk", "dv", "d_by_query", "d_edge_query")),
        *((name, CTensor) for name in ("d_label_keys", "d_label_values", "d_label_queries")),
        ("label_parts", c_void_p), ("labels", c_int64),
        *((name, c_void_p) for name in ("d_attr", "noted", "key_parts", "workspace")),
        *((name, c_int64) for name in ("workspace_numbers", "packed", "longest", "stretches", "threads")),
        ("parallel", c_void_p),
    ]  # fmt: skip
