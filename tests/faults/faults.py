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
GENERATE = "tests/interop/transformers/test_generate.py::test_a_model_with_relations_generates_with_a_cache_as_without"
HEADS = "tests/distributed/test_heads.py::test_two_processes"

# fmt: off
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
        "causal dropped", "causal order is left out where the offset is 0, as if the first query saw all keys",
        "relgraph/call/offset.py", "return offset >= plan.k_len - 1", "return offset >= 0",
        "tests/test_functional.py",
    ),
    Fault(
        "part of dropout", "a part of a larger call forgets with which head of it it begins, and draws another mask",
        "relgraph/call/check.py", "((drawn.batch, drawn.head, 0, 0), drawn.seed)",
        "((drawn.batch, 0, 0, 0), drawn.seed)",
        HEADS,
    ),
    # ---- plans ----
    Fault(
        "trimmed lookup", "a lookup is trimmed on the left without moving its first distance",
        "relgraph/plan/lower.py", "DistanceIds(first - labels.left,", "DistanceIds(-labels.left,",
        f"{SAME}::test_kinds tests/plan/test_lower.py",
    ),
    Fault(
        "overruled edges", "with duplicates='first' a later parallel edge counts as a further label",
        "relgraph/plan/lower.py", 'EXTRA if labels.duplicates == "sum" else DEAD', "EXTRA",
        f"{SAME}::test_kinds",
    ),
    Fault(
        "cut offset", "rows cut out of a plan forget how many rows come before them",
        "relgraph/plan/cut.py", "else offset + skipped", "else offset",
        f"{SAME}::test_small_blocks tests/impl/test_rows.py",
    ),
    Fault(
        "codec flag",
        "a plan that was encoded for custom ops comes back with the opposite of whether it has parallel edges",
        "relgraph/plan/codec.py", "csr_batch, bool(next_int()))", "csr_batch, not bool(next_int()))",
        "tests/plan/test_lower.py tests/impl/test_native_edges.py",
    ),
    # ---- plain torch ----
    Fault(
        "causal off by one", "dense causal order hides the key at the query's own position",
        "relgraph/impl/terms.py", "call.query.device) <= 0)", "call.query.device) < 0)",
        f"{SAME}::test_causal_with_an_offset_a_row_or_a_graph",
    ),
    Fault(
        "grouped heads", "query heads that share a key head are every n-th one in place of n that follow each other",
        "relgraph/impl/terms.py", "x.repeat_interleave(heads // x.shape[1], dim=1)",
        "x.repeat(1, heads // x.shape[1], 1, 1)",
        f"{SAME}::test_odd_size_with_every_option",
    ),
    Fault(
        "query table of the query", "a query table is gathered at the query in place of the key",
        "relgraph/impl/eager/dense.py", "by_key[..., start:stop], rows=False)", "by_key[..., start:stop], rows=True)",
        f"{SAME}::test_tables",
    ),
    Fault(
        "sum over blocks", "a gradient keeps that of the last block of rows in place of the sum over blocks",
        "relgraph/impl/eager/rows.py", "total.add_(piece.detach())", "total.copy_(piece.detach())",
        "tests/impl/test_rows.py tests/impl/test_scores.py",
    ),
    Fault(
        "second derivative", "second derivatives over listed pairs forget the query table",
        "relgraph/impl/eager/edges.py", "wide(problem.label_queries, more),", "None,",
        "tests/impl/test_native_edges.py::test_second_derivatives",
    ),
    Fault(
        "lse gradient of edges", "softmax over listed pairs gives no gradient to scores from the log-sum-exp",
        "relgraph/impl/eager/sparse.py", "rest = lse_grad - product.new_zeros(", "rest = -product.new_zeros(",
        "tests/impl/test_edges.py tests/test_functional_edges.py tests/impl/test_same_meaning.py::test_kinds",
    ),
    # ---- blocks of rows ----
    Fault(
        "chunked future", "a chunked block masks the future from one key too late",
        "relgraph/impl/chunked/ids.py", "self.rows.start + causal.low + 1)", "self.rows.start + causal.low + 2)",
        f"{SAME}::test_small_blocks",
    ),
    Fault(
        "chunked label sums", "the sum by label of a block keeps that of its last tile in place of the sum over tiles",
        "relgraph/impl/chunked/tiles.py", "by_query[..., self.column].add_(piece.sum(-1))",
        "by_query[..., self.column].copy_(piece.sum(-1))", f"{SAME}::test_kinds",
    ),
    Fault(
        "chunked key gradient", "the gradient of keys in blocks is not multiplied by the scale",
        "relgraph/impl/chunked/blocks.py", "operand, alpha=scale)", "operand)", f"{SAME}::test_scale",
    ),
    # ---- compiled kernels, C++ ----
    Fault(
        "C++ far right", "the keys with the last label of a distance lookup begin one too early",
        CPP + "labels.h", "part.lookup_length - 1 - at, left_", "part.lookup_length - 2 - at, left_",
        f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ sums of lanes", "the sum by label forgets the last of its four accumulators",
        CPP + "labels.h", "(x[2 * width] + x[3 * width])", "(x[2 * width] + x[2 * width])", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ causal keys", "the block's keys end one before the last that its last row may see",
        CPP + "block.h", "last + p_.causal_offsets[place_.graph * p_.causal_step] + 1)",
        "last + p_.causal_offsets[place_.graph * p_.causal_step])",
        f"{SAME}::test_causal_with_an_offset_a_row_or_a_graph",
    ),
    Fault(
        "C++ lse gradient", "the gradient of the log-sum-exp has the wrong sign in backward over all pairs",
        CPP + "block.h", "d_lse ? total - d_lse[", "d_lse ? total + d_lse[", f"{SAME}::test_kinds",
    ),
    Fault(
        "C++ mask", "the last key is never masked",
        CPP + "loops.h", "s[j] = byte[j] ? s[j] : -INF<T>;", "s[j] = byte[j] || j == n - 1 ? s[j] : -INF<T>;",
        f"{SAME}::test_masks",
    ),
    Fault(
        "C++ dropout place", "dropout of some keys is drawn as if they began at the start of a group of 64",
        CPP + "dropout.h", "const int64_t begin = group * GROUP - first_key;",
        "const int64_t begin = group * GROUP - first_key / GROUP * GROUP;", "tests/impl/test_dropout_origin.py",
    ),
    Fault(
        "C++ pairs dropped", "backward over listed pairs takes weights before dropout for the gradient of values",
        CPP + "query.h", "if (factors)\n      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];",
        "if (factors && p.mass.data)\n      for (int64_t e = 0; e < count_; e++) scores_[e] *= factors[e];",
        "tests/impl/test_native_edges.py tests/impl/test_same_meaning.py::test_odd_size_with_every_option",
    ),
    Fault(
        "C++ stretches", "gradients of keys forget those of the last stretch of queries of another thread",
        CPP + "edges.cpp", "for (int64_t s = 0; s + 1 < p.stretches; s++)",
        "for (int64_t s = 0; s + 2 < p.stretches; s++)",
        "tests/impl/test_native_edges.py::test_every_cut_gives_the_same",
    ),
    # ---- prepared calls ----
    Fault(
        "strides in the form", "the form of a call leaves out strides, so that another layout is read wrongly",
        "relgraph/impl/prepared.py", "form.append((name, x.shape, x.stride(), x.dtype, x.requires_grad))",
        "form.append((name, x.shape, x.dtype, x.requires_grad))",
        "tests/impl/test_prepared.py::test_one_labels_object_takes_tensors_of_any_strides",
    ),
    Fault(
        "prepared key gradient", "the prepared gradient of the key table lacks the scale",
        "relgraph/impl/native/prepared.py", "of_table(by_query, query, keys).mul_(struct.scale)",
        "of_table(by_query, query, keys)", "tests/impl/test_prepared.py::test_values_and_gradients",
    ),
    # ---- Triton, by its interpreter ----
    Fault(
        "Triton causal map", "tiles that causal order hides in part are taken as whole",
        "relgraph/impl/triton/tile_ids.py", "dead, whole = nearest > limit, whole & (farthest <= limit)",
        "dead = nearest > limit", "tests/impl/test_tilemap.py",
    ),
    Fault(
        "Triton causal pairs", "causal order in a tile by distance hides the key at the query's own position",
        "relgraph/impl/triton/attention_kernels.py",
        "tl.minimum(rows + limit, other_stop - 1), -1)\n\n    # maximum",
        "tl.minimum(rows + limit - 1, other_stop - 1), -1)\n\n    # maximum",
        "tests/impl/test_triton.py::test_each_kind_and_option",
    ),
    Fault(
        "Triton value gradient",
        "the gradient of a value table per head is the mean over batch rows in place of the sum",
        "relgraph/impl/triton/tables.py", "(sums.transpose(-1, -2) @ grad).sum(0)",
        "(sums.transpose(-1, -2) @ grad).mean(0)",
        "tests/impl/test_triton.py::test_each_kind_and_option",
    ),
    # ---- the door ----
    Fault(
        "merge", "merging does not divide the shares by their sum",
        "relgraph/functional/merge.py", "zip(shares / total, outputs, strict=True)",
        "zip(shares, outputs, strict=True)",
        "tests/test_merge.py",
    ),
    Fault(
        "region of other threads", "leaving a region forgets the region around it",
        "relgraph/functional/region.py", "        _current.set(before)\n", "        _current.set(None)\n",
        "tests/distributed/test_misuse.py::test_processes_answer_or_refuse_alike",
    ),
    Fault(
        "choice", "the rule chooses by size also for a part of a larger call, whose dropout must be drawn alike",
        "relgraph/impl/rule.py", "return call.dropout_seed is not None and call.dropout_p > 0.0 and call.keep is None",
        "return False",
        "tests/impl/test_choose.py tests/test_which_impl.py tests/impl/test_dropout_parts.py",
    ),
    # ---- labels ----
    Fault(
        "stale contents", "labels whose numbers were changed in place keep what was made of the old ones",
        "relgraph/labels/contents.py",
        'return address, x.shape, HASHES["cpu"](address, x.nbytes)', "return address, x.shape",
        "tests/labels/test_contents.py",
    ),
    Fault(
        "ragged address",
        "keys of a packed batch are not counted from their graph's first key where its ids are addressed",
        "relgraph/labels/ragged.py", "starts[graph] + (query - q_ptr[graph]) * width + key - k_ptr[graph]",
        "starts[graph] + (query - q_ptr[graph]) * width + key", "tests/labels/test_join.py tests/impl/test_groups.py",
    ),
    Fault(
        "edge ends", "in the dense form the source of an edge attends in place of its target",
        "relgraph/labels/edge.py", "attend[row, target, source] = True", "attend[row, source, target] = True",
        "tests/labels/test_kinds.py tests/labelers/test_edge_type.py",
    ),
    # ---- labelers ----
    Fault(
        "T5 buckets", "buckets of T5 after the query begin at the bucket of the query itself",
        "relgraph/labelers/sequence/buckets.py", "after = [bucket + side for bucket in buckets[1:]]",
        "after = [bucket + side - 1 for bucket in buckets[1:]]", "tests/labelers/test_buckets.py",
    ),
    Fault(
        "tree direction", "steps up and down a tree are exchanged",
        "relgraph/labelers/tree/relation.py", "up.clamp(max=2) * 3 + down.clamp(max=2)",
        "down.clamp(max=2) * 3 + up.clamp(max=2)",
        "tests/labelers/test_tree.py",
    ),
    Fault(
        "shortest path", "paths as long as the clip count as beyond it",
        "relgraph/labelers/graph/shortest_path.py", "hop > max_distance", "hop >= max_distance",
        "tests/labelers/test_shortest_path.py",
    ),
    Fault(
        "inverse edges", "inverse edges have the id after that of the edge itself",
        "relgraph/labelers/graph/edge_type.py", "ids.append(types + len(self.types))",
        "ids.append(types + self.inverse)",
        "tests/labelers/test_edge_type.py",
    ),
    # ---- layers ----
    Fault(
        "mask polarity", "a bool mask alone keeps the layer's polarity, so that True attends",
        "relgraph/nn/masks.py", "return None if only is None else ~only if only.dtype == torch.bool else only",
        "return only", "tests/nn/test_attention.py",
    ),
    Fault(
        "rotary order", "rotary positions turn keys in a cache by their place in the chunk in place of in the sequence",
        "relgraph/nn/rotary.py", "labels, past = inputs.labels, 0 if cache is None else len(cache)",
        "labels, past = inputs.labels, 0", "tests/nn/test_rotary.py",
    ),
    Fault(
        "cache reorder", "a reordered cache keeps the padding of the old batch rows",
        "relgraph/nn/cache.py", 'for name in ("_key", "_value", "_padding"):', 'for name in ("_key", "_value"):',
        "tests/nn/test_cache.py",
    ),
    Fault(
        "labels of new rows", "labels of a whole sequence are cut to the first rows in each step of decoding",
        "relgraph/nn/cache.py", "return labels.rows(past, stop).cols(0, stop)",
        "return labels.rows(0, length).cols(0, stop)",
        "tests/nn/test_cache.py",
    ),
    Fault(
        "causal decoder", "a decoder counts memory causal order from 0 in each step",
        "relgraph/nn/decoder_layer.py", "q_offset=past if memory_is_causal else None",
        "q_offset=0 if memory_is_causal else None",
        "tests/nn/test_cache.py tests/nn/test_decoder_layer.py",
    ),
    Fault(
        "dropout in eval", "a layer drops weights outside of training",
        "relgraph/nn/attention.py",
        '"dropout_p": self.dropout if self.training else 0.0,', '"dropout_p": self.dropout,',
        "tests/nn/test_attention.py::test_dropout_acts_in_training_only",
    ),
    Fault(
        "label names", "a state with as many labels under other names loads",
        "relgraph/nn/table.py", "            if saved != mine:\n", "            if saved != saved:\n",
        "tests/nn/test_table.py",
    ),
    # ---- graph layers ----
    Fault(
        "relation means", "the mean by relation divides by the number of all edges",
        "relgraph/pyg/relation_mean.py", "bincount(minlength=count).double().reciprocal()",
        "bincount(minlength=count).double().sum().reciprocal().expand(count)", "tests/pyg/test_full_maps.py",
    ),
    Fault(
        "self-loops", "self-loops that are there already stay beside the new ones",
        "relgraph/pyg/self_loops.py", "count, keep = min(edges.sizes), edges.index[0] != edges.index[1]",
        "count, keep = min(edges.sizes), edges.index[0] >= 0",
        "tests/pyg/test_conv.py::test_self_loops_are_those_of_pyg",
    ),
    Fault(
        "root weight", "the gate of the root term weighs the wrong one of output and root",
        "relgraph/pyg/conv.py", "return gate * root + (1 - gate) * out", "return gate * out + (1 - gate) * root",
        "tests/pyg/test_convert.py",
    ),
    Fault(
        "full maps", "the gradient of rows goes through the maps in the opposite order of relations",
        "relgraph/pyg/full_maps.py", "_ByRelation.apply(grad, maps.transpose(-1, -2), runs) if needed[0]",
        "_ByRelation.apply(grad, maps.flip(0).transpose(-1, -2), runs) if needed[0]", "tests/pyg/test_full_maps.py",
    ),
    Fault(
        "converted rows", "rows of edge types that are copied from TransformerConv go to the heads in opposite order",
        "relgraph/pyg/convert.py", "made.tables.key.rows.copy_(columns.transpose(1, 2))",
        "made.tables.key.rows.copy_(columns.transpose(1, 2).flip(0))", "tests/pyg/test_convert.py",
    ),
    # ---- models of Hugging Face ----
    Fault(
        "unknown words", "a class with a new argument that relgraph does not know is patched all the same",
        "relgraph/interop/transformers/words.py",
        "new = [word for word in words_of(getattr(kind, name)) if word not in known]",
        "new = []", "tests/interop/transformers/test_words.py",
    ),
    Fault(
        "DeBERTa scale", "the scale of DeBERTa does not count the product of queries and keys",
        "relgraph/interop/transformers/deberta.py", "module.attention_head_size * (1 + terms)",
        "module.attention_head_size * terms",
        "tests/interop/transformers/test_deberta.py",
    ),
    Fault(
        "mask of a static cache", "a mask is cut to the last keys where a static cache has more room",
        "relgraph/interop/transformers/common.py", "mask = mask[..., :keys]", "mask = mask[..., -keys:]",
        GENERATE,
    ),
    Fault(
        "added relations", "a step of decoding with a cache and no mask takes the first position for its query",
        "relgraph/interop/transformers/relation.py", "return k_len - q_len if q_len == 1 else 0", "return 0",
        GENERATE,
    ),
    Fault(
        "evicted keys", "labels are those of the first keys where a sliding window keeps the last ones",
        "relgraph/interop/transformers/relation.py", "labels.cols(labels.k_len - keys, labels.k_len)",
        "labels.cols(0, keys)",
        GENERATE,
    ),
    # ---- several processes ----
    Fault(
        "all-gather slices", "a process sees one key too few where causal order ends its rows",
        "relgraph/distributed/context/gathered.py", "max(rows[1] - rows[0] + offset, 1)",
        "max(rows[1] - rows[0] - 1 + offset, 1)",
        "tests/distributed/test_context.py tests/distributed/test_layers.py",
    ),
    Fault(
        "shared gradients", "tensors that all parts share take the gradient of their own part, unsummed",
        "relgraph/distributed/tensors.py", "Partial() if role is not None and not is_split", "Replicate() if role is not None and not is_split",
        HEADS,
    ),
    Fault(
        "split projections", "the gradient of an output that all processes hold counts once for each of them",
        "relgraph/distributed/head_parallel.py", "        return x.to_local() if",
        "        from torch.distributed.tensor import Partial\n        return x.to_local(grad_placements=[Partial()]) if",
        HEADS,
    ),
)
# fmt: on
