"""The deliberate faults: slips that somebody could make, each of which changes what some call gives.

``meaning`` says in a sentence what is wrong, so that the fault can be made again after its code was rebuilt. The old
text must be in the file exactly once; a larger part of its line or the line before it makes it so.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A slip in a file, and the tests that must catch it: files or names of tests, with spaces between them."""

    name: str
    meaning: str
    file: str
    old: str
    new: str
    tests: str


SAME = "tests/impl/test_same_meaning.py"
CPP = "relgraph/impl/native/"

FAULTS = (
    # ---- what a call is ----
    Fault(
        "default scale", "the default scale is 1 / D in place of 1 / √D",
        "relgraph/call/check.py", 'sizes["D"] ** -0.5 if', 'sizes["D"] ** -1.0 if',
        "tests/test_functional.py::test_without_labels_it_is_plain_attention",
    ),
    Fault(
        "mask shape", "an attn_mask whose axes have other sizes than the call passes the check",
        "relgraph/call/check.py", "fits = fits and (m == 1 or m == w)", "fits = fits or (m == 1 or m == w)",
        "tests/test_functional.py",
    ),
    Fault(
        "causal dropped", "causal order is left out one key too early, where the last row still hides a key",
        "relgraph/call/offset.py", "return offset >= plan.k_len - 1", "return offset >= 0",
        "tests/test_functional.py",
    ),
    Fault(
        "part of dropout", "a part of a larger call forgets in which batch row of it it begins, and draws another mask",
        "relgraph/call/check.py", "((drawn.batch, drawn.head, 0, 0), drawn.seed)", "((0, drawn.head, 0, 0), drawn.seed)",
        "tests/impl/test_dropout_origin.py tests/distributed/test_layers.py",
    ),
    # ---- plans ----
    Fault(
        "trimmed lookup", "a lookup is trimmed on the left without moving its first distance",
        "relgraph/plan/lower.py", "DistanceIds(first - labels.left,", "DistanceIds(-labels.left,",
        f"{SAME}::test_kinds tests/plan/test_lower.py",
    ),
    Fault(
        "overruled edges", "a parallel edge that the first one overrules counts as a further label",
        "relgraph/plan/lower.py", 'EXTRA if labels.duplicates == "sum" else DEAD', "EXTRA",
        f"{SAME}::test_kinds",
    ),
    Fault(
        "cut offset", "rows cut out of a plan forget how many rows come before them",
        "relgraph/plan/cut.py", "else offset + skipped", "else offset",
        f"{SAME}::test_small_blocks tests/impl/test_rows.py",
    ),
    Fault(
        "codec order", "a plan that custom ops get has the sentinel of listed pairs of one batch row",
        "relgraph/plan/codec.py", "csr_batch, bool(next_int()))", "csr_batch, not bool(next_int()))",
        "tests/test_compile.py tests/impl/test_native_edges.py tests/plan/test_lower.py",
    ),
    Fault(
        "clamped distance", "distances beyond the last entry of a lookup read the entry before it",
        "relgraph/plan/ids.py", "distance.clamp(ids.first, ids.last) - ids.first",
        "distance.clamp(ids.first, ids.last - 1) - ids.first", f"{SAME}::test_kinds",
    ),
    # ---- plain torch ----
    Fault(
        "causal off by one", "dense causal order hides the key at the query's own position",
        "relgraph/impl/terms.py", "call.query.device) <= 0)", "call.query.device) < 0)", f"{SAME}::test_masks",
    ),
    Fault(
        "dense dropout scale", "weights that dropout keeps are not divided by the chance to be kept",
        "relgraph/impl/terms.py", "weights * kept / (1.0 - call.dropout_p)", "weights * kept", f"{SAME}::test_masks",
    ),
    Fault(
        "bias of a label", "the bias table is multiplied by the scale",
        "relgraph/impl/terms.py", "bias = with_zero_row(table.bias.to(dtype), -1)",
        "bias = with_zero_row(table.bias.to(dtype), -1) * scale", f"{SAME}::test_tables",
    ),
    Fault(
        "query table of the query", "a query table is gathered at the query in place of the key",
        "relgraph/impl/eager/dense.py", "by_key[..., start:stop], rows=False)", "by_key[..., start:stop], rows=True)",
        f"{SAME}::test_tables",
    ),
    Fault(
        "rows before", "attention by rows forgets in backward that blocks add to gradients",
        "relgraph/impl/eager/rows.py", "total.add_(piece.detach())", "total.copy_(piece.detach())",
        "tests/impl/test_rows.py tests/impl/test_scores.py",
    ),
    Fault(
        "edge value map", "the sum of edge vectors is multiplied by the map of values without a transpose",
        "relgraph/impl/eager/edges.py", "sums @ self._table(edge.value).transpose(-1, -2)",
        "sums @ self._table(edge.value).transpose(-1, -2).flip(-1)", "tests/test_functional_edges.py",
    ),
    Fault(
        "second derivative", "the primitive over listed pairs forgets the term of the query table in second derivatives",
        "relgraph/impl/eager/primitive.py", "scores = scores + carried.gather(by_key, col)",
        "scores = scores + carried.gather(by_key, col) * 0.5", "tests/impl/test_native_edges.py::test_second_derivatives",
    ),
    Fault(
        "lse gradient of edges", "softmax over listed pairs gives no gradient to scores from the log-sum-exp",
        "relgraph/impl/eager/sparse.py", "rest = lse_grad - product.new_zeros(", "rest = -product.new_zeros(",
        "tests/impl/test_edges.py tests/test_functional_edges.py tests/impl/test_same_meaning.py::test_kinds",
    ),
    Fault(
        "grouped heads of pairs", "heads that share keys take those of other groups in products over pairs",
        "relgraph/impl/eager/sparse.py", "x.repeat_interleave(lanes // x.shape[0], 0)",
        "x.repeat(lanes // x.shape[0], *[1] * (x.dim() - 1))", f"tests/impl/test_edges.py {SAME}::test_odd_size_with_every_option",
    ),
    # ---- blocks of rows ----
    Fault(
        "chunked far keys", "a chunked block takes one key too many for uniformly far on the left",
        "relgraph/impl/chunked/parts.py", "min(stop, rows.start + self.offset.low + ids.first + 1)",
        "min(stop, rows.start + self.offset.low + ids.first + 2)", f"{SAME}::test_small_blocks",
    ),
    Fault(
        "chunked future", "a chunked block masks the future from one key too late",
        "relgraph/impl/chunked/ids.py", "self.rows.start + causal.low + 1)", "self.rows.start + causal.low + 2)",
        f"{SAME}::test_small_blocks {SAME}::test_masks",
    ),
    Fault(
        "chunked key gradient", "the gradient of keys in blocks is not multiplied by the scale",
        "relgraph/impl/chunked/blocks.py", "operand, alpha=scale)", "operand)", f"{SAME}::test_scale",
    ),
    Fault(
        "chunked padding", "graphs of one group see the padding of shorter ones",
        "relgraph/impl/chunked/groups.py", "return ~padding\n", "return padding.new_ones(padding.shape)\n",
        "tests/impl/test_groups.py",
    ),
    # ---- compiled kernels, C++ ----
    Fault(
        "C++ far right", "the keys with the last label of a distance lookup begin one too early",
        CPP + "labels.h", "part.lookup_length - 1 - at, left_", "part.lookup_length - 2 - at, left_", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ listed id", "a further label of a listed pair replaces its score in place of adding to it",
        CPP + "labels.h", "if (role(e) == 2) s[key(e)] += table[id(e)];", "if (role(e) == 2) s[key(e)] = table[id(e)];",
        f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ sums of lanes", "the sum by label forgets the last of its four accumulators",
        CPP + "labels.h", "(x[2 * width] + x[3 * width])", "(x[2 * width] + x[2 * width])", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ unlabeled keys", "pairs without a label add to the gradient of the last label of a query table",
        CPP + "loops.h", "columns[(id[j] < 0 ? num_labels : int64_t(id[j])) * keys + j] += s[j];",
        "columns[(id[j] < 0 ? num_labels - 1 : int64_t(id[j])) * keys + j] += s[j];", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ causal keys", "the block's keys end one before the last that its last row may see",
        CPP + "block.h", "last + p_.causal_offsets[place_.graph * p_.causal_step] + 1)",
        "last + p_.causal_offsets[place_.graph * p_.causal_step])", f"{SAME}::test_masks",
    ),
    Fault(
        "C++ lse gradient", "the gradient of the log-sum-exp has the wrong sign in backward over all pairs",
        CPP + "block.h", "d_lse ? total - d_lse[", "d_lse ? total + d_lse[", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ later chunks", "the gradient of queries keeps only the last chunk of keys",
        CPP + "block.h", "p.size, !first, dq, p.dq.row);", "p.size, false, dq, p.dq.row);",
        "tests/impl/test_native.py::test_windows_over_several_panels tests/impl/test_large_scores.py",
    ),
    Fault(
        "C++ bfloat16", "numbers are cut to bfloat16 in place of rounded to the nearest",
        CPP + "loops.h", "(bits + 0x7fff + ((bits >> 16) & 1)) >> 16", "bits >> 16",
        f"{SAME}::test_error_in_lower_precision tests/impl/test_native_slices.py::test_rounding",
    ),
    Fault(
        "C++ dropout group", "dropout draws by the group's place in the block in place of its place in the row",
        CPP + "dropout.h", "uint32_t a = group * uint32_t(LANES) + uint32_t(lane), b = query",
        "uint32_t a = uint32_t(lane), b = query", "tests/impl/test_native.py::test_dropout_keeps_the_mean tests/impl/test_dropout_parts.py",
    ),
    Fault(
        "C++ edge value gradient", "the gradient of values over listed pairs has weights before dropout",
        CPP + "query.h", "if (factors)\n      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];",
        "if (factors && p.mass.data)\n      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];",
        "tests/impl/test_native_edges.py tests/impl/test_same_meaning.py::test_odd_size_with_every_option",
    ),
    Fault(
        "C++ stretches", "gradients of keys forget those of the last stretch of queries of another thread",
        CPP + "edges.cpp", "for (int64_t s = 0; s + 1 < p.stretches; s++)", "for (int64_t s = 0; s + 2 < p.stretches; s++)",
        "tests/impl/test_native_edges.py::test_every_cut_gives_the_same",
    ),
    Fault(
        "C++ row of nothing", "the sum by label of a query row without keys is left as it was in memory",
        CPP + "block.h", "zeros(p_.sums, p_.columns);\n", "zeros(p_.sums, 0);\n",
        "tests/impl/test_native.py::test_blocks_of_rows_that_see_no_key",
    ),
    # ---- prepared calls ----
    Fault(
        "strides in the form", "the form of a call leaves out strides, so that another layout is read wrongly",
        "relgraph/impl/prepared.py", "form.append((name, x.shape, x.stride(), x.dtype, x.requires_grad))",
        "form.append((name, x.shape, x.dtype, x.requires_grad))",
        "tests/impl/test_prepared.py::test_one_labels_object_takes_tensors_of_any_strides",
    ),
    Fault(
        "numbers in the form", "the form of a call holds the type of a number, such as the scale, and not its value",
        "relgraph/impl/prepared.py", 'x if step is None or name != "q_offset" else None', "None",
        "tests/impl/test_prepared.py",
    ),
    Fault(
        "prepared bias gradient", "the prepared gradient of the key table lacks the scale",
        "relgraph/impl/native/prepared.py", "of_table(by_query, query, keys).mul_(struct.scale)",
        "of_table(by_query, query, keys)", "tests/impl/test_prepared.py::test_values_and_gradients",
    ),
)
