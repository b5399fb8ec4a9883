"""From the arguments of a caller to a checked call: each argument is checked once, here."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.check import FLOATING_DTYPES, PLAIN
from relgraph.arguments.hints import in_place_of_labels
from relgraph.arguments.sharding import check_context, check_local
from relgraph.call.call import Call, EdgeVectors, Gates, Tables, ValueMap
from relgraph.call.fold import with_query_biases
from relgraph.call.offset import offset_of, sees_all_keys
from relgraph.call.operands import BY_NAME, FREE_MAPS, Given, Operand, map_given, weight_of
from relgraph.call.scores import check_function, check_score_type
from relgraph.labels import DenseLabels, EdgeLabels, Labels, SumLabels
from relgraph.labels.naming import KINDS
from relgraph.plan import LabelPlan, lower, plain
from relgraph.score import DOT, Compatibility, compatibility

BATCHED, PACKED, NODES = "[B, H, N, D]", "[T, H, D], as the labels are packed", "[N, H, D]"
"""The axes of query, key and value: in a batch, in a packed batch, in a graph layer."""

_TABLES = tuple(operand for operand in BY_NAME.values() if operand.name.endswith("_table"))
_WITH_ROWS = (*_TABLES, BY_NAME["key_gate"], BY_NAME["value_gate"])
_BY_PART = (*_TABLES, BY_NAME["row_scores"])
_ROWS, _BIASES = BY_NAME["row_scores"], (BY_NAME["content_bias"], BY_NAME["position_bias"])


class _Known(NamedTuple):
    """What the checks of one call know: its query, the length of each axis by name, and the axes of its inputs."""

    query: Tensor
    sizes: dict[str, int]
    layout: str
    autocast: bool


def check_call(given: Given, *, nodes: bool = False, only_check: bool = False) -> Call:
    """The checked call of these arguments.

    Args:
        given: the arguments.
        nodes: whether the inputs come from a graph layer, ``[N, H, D]``.
        only_check: whether to leave out what takes memory: biases are not added to queries.
    """
    labels, traced = given["labels"], torch.compiler.is_compiling()
    for x in () if traced else given.values():
        for one in x if type(x) is tuple else (x,):
            if (
                type(one) in PLAIN and one.is_neg()
            ):  # torch would negate it on reading, but kernels read memory as it is
                given = map_given(given, lambda _, x: x.resolve_neg() if type(x) in PLAIN else x)
    if type(labels) not in KINDS:
        check_labels_type(labels)
    check_context()
    packed = type(labels) in KINDS and labels.k_ptr is not None
    known, key, value = _check_inputs(given, NODES if nodes else PACKED if packed else BATCHED, traced=traced)
    query, sizes = known.query, known.sizes
    if labels is not None:
        check_labels_fit(labels, sizes["B"], sizes["N_q"], sizes["N_k"], query.device, heads=sizes.get("H"))
        if isinstance(labels, Tensor):
            labels = labels_from_ids(labels, given)
    plan = plain(sizes["N_q"], sizes["N_k"]) if labels is None else lower(labels)
    tables = _check_tables(given, known, plan, labels)
    score = DOT if given.get("score") is None else _check_score(given["score"], known, plan, tables)
    maps, mask = given.get("value_map"), given.get("attn_mask")
    maps = None if maps is None else _check_value_map(maps, known, plan)
    mask = None if mask is None else _check_mask(mask, known)
    gates = None
    if given.get("key_gate") is not None or given.get("value_gate") is not None:
        gates = _check_gates(given, known, plan, score)
    edge = None
    if given.get("edge_attr") is not None or given.get("edge_key") is not None or given.get("edge_value") is not None:
        edge = _check_vectors(given, known, labels)
    if given.get("sink") is not None:
        _check_operand(BY_NAME["sink"], given["sink"], known)
    is_causal = given.get("is_causal", False)
    if is_causal is not False:
        check.boolean("is_causal", is_causal)
    offset = offset_of(given.get("q_offset"), labels, plan, is_causal, query)
    scale, dropout_p = given.get("scale"), given.get("dropout_p", 0.0)
    if scale is None:
        scale = sizes["D"] ** -0.5 if sizes["D"] and not score.additive else 1.0
    else:
        scale = check.finite("scale", scale)
    if type(dropout_p) is not float or dropout_p != 0.0:
        dropout_p = check.probability("dropout_p", dropout_p)
    content, position = given.get("content_bias"), given.get("position_bias")
    if content is not None or position is not None:
        for operand, bias in zip(_BIASES, (content, position), strict=True):
            if bias is not None:
                _check_operand(operand, bias, known)
        rows = query[:, :, :0] if only_check else query
        rows, tables = with_query_biases(content, position, rows, tables, scale, score, edge)
        query = query if only_check else rows
    need_weights, need_mass = given.get("need_weights", False), given.get("need_label_mass", False)
    if need_weights is not False or need_mass is not False:
        check.boolean("need_weights", need_weights)
        if check.boolean("need_label_mass", need_mass) and labels is None:
            raise ValueError(
                "need_label_mass must be False when labels is None: there is no label to receive attention"
            )
    drawn = given.get("drawn")
    origin, seed = ((0, 0, 0, 0), None) if drawn is None else ((drawn.batch, drawn.head, 0, 0), drawn.seed)
    return Call(
        query, key, value, plan, tables, scale, mask, is_causal and not sees_all_keys(offset, plan), offset, dropout_p,
        None, need_weights, need_mass, score, maps, edge, origin if seed is not None else (0, 0, 0, 0), seed,
        gates=gates,
    )  # fmt: skip


def _check_inputs(given: Given, layout: str, *, traced: bool) -> tuple[_Known, Tensor, Tensor]:
    """What is known of the call, with its query, and key and value, ``[B, H, N, D]`` whatever their layout was."""
    query, key, value = given["query"], given["key"], given["value"]
    dims = 4 if layout is BATCHED else 3
    for name, x in (("query", query), ("key", key), ("value", value)):
        if type(x) not in PLAIN or x.layout != torch.strided or x.is_nested or x.dtype not in FLOATING_DTYPES:
            check.floating(name, x)
            check_local(**{name: x})
        if x.dim() != dims:
            hint = "; [T, H, D] is for labels with ptr, a packed batch" if (x.dim(), dims) == (3, 4) else ""
            raise ValueError(f"{name} must have shape {layout}, got {list(x.shape)}{hint}")
        if x.device != query.device:
            raise ValueError(f"{name} must be on the device of query, {query.device}, got {x.device}")
    dtype = check.autocast_dtype(query.device.type)
    if dtype is not None:
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    if not traced:
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.numel() > check.MOST_NUMBERS:
                check.tensor(name, x)  # raises
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if dims == 3:
        query, key, value = query.transpose(0, 1)[None], key.transpose(0, 1)[None], value.transpose(0, 1)[None]
    q, k, v = query.shape, key.shape, value.shape
    if q[0] != k[0] or q[0] != v[0]:
        raise ValueError(f"query, key and value must share their batch size, got {q[0]}, {k[0]} and {v[0]}")
    if q[3] != k[3]:
        raise ValueError(f"key must have the head size of query, {q[3]}, got {k[3]}")
    if k[1:3] != v[1:3]:
        what, step = ("heads and length", 1) if dims == 4 else ("length and heads", -1)
        raise ValueError(f"value must have the {what} of key, {list(k[1:3])[::step]}, got {list(v[1:3])[::step]}")
    heads, kv_heads, gqa = q[1], k[1], given.get("enable_gqa", False)
    if gqa is not False or heads != kv_heads:
        check_heads(heads, kv_heads, check.boolean("enable_gqa", gqa))
    sizes = {"B": q[0], "H": heads, "N_q": q[2], "D": q[3], "H_kv": kv_heads, "N_k": k[2], "D_v": v[3], "1": 1}
    return _Known(query, sizes, layout, dtype is not None), key, value


def check_heads(heads: int, kv_heads: int, gqa: bool) -> None:
    """Raise ValueError unless each key head serves as many query heads as every other."""
    if heads != kv_heads and (not gqa or kv_heads == 0 or heads % kv_heads):
        wanted = f"a divisor of the {heads} query heads" if gqa else f"{heads} heads like query (see enable_gqa)"
        raise ValueError(f"key must have {wanted}, got {kv_heads}")


def check_labels_type(labels: Any, name: str = "labels") -> None:
    """Raise TypeError, which calls them ``name``, unless ``labels`` are Labels, a Tensor or None."""
    if labels is not None and not isinstance(labels, (Tensor, Labels)):
        raise TypeError(f"{name} must be Labels, an integer Tensor or None, got {in_place_of_labels(labels)}")


def check_ids(ids: Tensor, name: str = "labels") -> None:
    """Raise an error, which calls them ``name``, unless raw ids are integers in memory."""
    check.tensor(name, ids)
    check.unmapped(name, ids)
    check_local(**{name: ids})
    if ids.dtype not in check.INTEGER_DTYPES:
        raise ValueError(f"{name} must have an integer dtype, got {ids.dtype}")


def check_labels_fit(
    labels: Labels | Tensor, batch: int, q_len: int, k_len: int, device: torch.device, name: str = "labels",
    query: str = "query", heads: int | None = None,
) -> None:  # fmt: skip
    """Raise ValueError unless labels, or raw ids, are for this many batch rows, queries and keys, on this device.

    Errors call labels and queries ``name`` and ``query``; with ``heads`` they notice queries ``[B, N, H, D]``.
    """
    if isinstance(labels, Tensor):
        check_ids(labels, name)
        if not check.shaped(labels, (q_len, k_len), (batch, q_len, k_len), (1, q_len, k_len)):
            raise ValueError(
                f"{name} must have shape [N_q, N_k] = [{q_len}, {k_len}] or [{batch}, {q_len}, {k_len}], "
                f"got {list(labels.shape)}"
            )
    elif labels.q_len != q_len or labels.k_len != k_len:
        hint = ""
        if q_len < k_len and labels.q_len == labels.k_len < k_len:
            hint = ": new tokens see all keys, so give the labels of all tokens so far"
        elif heads is not None and labels.q_len == heads:
            hint = f": {query} must be [B, H, N, D], and seems to be [B, N, H, D]; transpose(1, 2) makes it so"
        raise ValueError(
            f"{name} must cover [N_q, N_k] = [{q_len}, {k_len}], got [{labels.q_len}, {labels.k_len}]{hint}"
        )
    elif labels.batch_size != 1 and labels.batch_size != batch:  # not ``in``: dynamo may know one of them only
        raise ValueError(f"{name} must have batch_size 1{f' or {batch}' * (batch != 1)}, got {labels.batch_size}")
    where = labels.device
    if where is not None and where != device:
        raise ValueError(f"{name} must be on the device of {query}, {device}, got {where}")


def labels_from_ids(ids: Tensor, given: Given) -> Labels:
    """Labels from raw ids, with as many labels as the tables or gates have rows."""
    for operand in _WITH_ROWS:
        table, axis = given.get(operand.name), operand.forms[0].index("R") - len(operand.forms[0])
        if isinstance(table, Tensor) and check.tensor(operand.name, table).dim() >= -axis:
            ids = ids.to(torch.int16) if ids.dtype == torch.uint8 else ids  # kernels read signed ones
            return DenseLabels._trusted(ids, table.shape[axis])
    raise ValueError("labels given as a Tensor need a table or a gate, whose rows give R, got none: build DenseLabels")


def _check_operand(operand: Operand, x: Any, known: _Known, name: str = "") -> Tensor:
    """Return a tensor of the call; raise an error that names it unless its shape, dtype and device fit."""
    query, sizes, name = known.query, known.sizes, name or operand.name
    if type(x) not in PLAIN or x.layout != torch.strided or x.is_nested or x.dtype not in FLOATING_DTYPES:
        check.floating(name, x)
        check_local(**{name: x})
    shape = x.shape
    for form in operand.forms if known.layout is BATCHED else operand.packed:
        if len(form) == len(shape):
            for axis, size in zip(form, shape, strict=True):
                if sizes[axis] != size:
                    break
            else:
                break
    else:
        _refuse_shape(operand, name, x, known)
    if x.dtype != query.dtype and not operand.any_dtype and not known.autocast:
        raise ValueError(f"{name} must have the dtype of query, {query.dtype}, got {x.dtype}")
    if x.device != query.device:
        raise ValueError(f"{name} must be on the device of query, {query.device}, got {x.device}")
    return x


def _refuse_shape(operand: Operand, name: str, x: Tensor, known: _Known) -> NoReturn:
    """Raise ValueError for a shape that is none of the operand's."""
    batched = known.layout is BATCHED
    forms = list(operand.forms if batched else operand.packed)
    with_batch = [form for form in operand.forms if form[0] == "B"]
    why = ""
    if 0 < len(with_batch) < len(operand.forms):  # a table: with or without a batch axis
        same = x.dim() == len(with_batch[0])
        forms = with_batch if same and batched else [form for form in operand.forms if form[0] != "B"]
        why = ", as inputs have no batch axis" if same and not batched else ""
    axes = {"N_q": "T_q"} if known.layout is PACKED else {}
    shown = " or ".join(f"[{', '.join(axes.get(axis, axis) for axis in form)}]" for form in forms)
    sizes = " or ".join(str([known.sizes[axis] for axis in form]) for form in forms)
    raise ValueError(f"{name} must have shape {shown} = {sizes}{why}, got {list(x.shape)}")


def _check_tables(given: Given, known: _Known, plan: LabelPlan, labels: Labels | None) -> tuple[Tables, ...]:
    """The tables of each part of the labels."""
    is_sum = type(labels) is SumLabels
    by_part: list[dict[str, Tensor]] = [{} for _ in plan.parts]
    for operand in _BY_PART:
        tables = given.get(operand.name)
        if tables is None:
            continue
        if labels is None:
            raise ValueError(f"{operand.name} must be None when labels is None: no pair carries a label to look up")
        if not is_sum:
            tables = (tables,)
        elif not isinstance(tables, (tuple, list)) or len(tables) != len(by_part):
            what = "tensors" if operand is _ROWS else "tables"
            got = f"{len(tables)}" if isinstance(tables, (tuple, list)) else type(tables).__name__
            raise ValueError(
                f"{operand.name} must be a tuple of {len(by_part)} {what}, one per part of the sum, got {got}"
            )
        for index, (table, part) in enumerate(zip(tables, plan.parts, strict=True)):
            if table is None:
                continue
            name = f"{operand.name}[{index}]" if is_sum else operand.name
            known.sizes["R"] = part.num_labels
            _check_operand(operand, table, known, name)
            if operand is _ROWS and "key" in by_part[index]:
                raise ValueError(f"{name} must be None with a key_table, which would give the same term again")
            if operand is _ROWS and known.layout is not BATCHED:
                table = table.transpose(0, 1)[None]
            by_part[index][operand.place[1]] = table
    return (Tables(**by_part[0]),) if len(by_part) == 1 else tuple([Tables(**tables) for tables in by_part])


def check_read(call: Call, given: Given) -> None:
    """Raise ValueError for labels that change nothing: nothing looks their ids up, and they let all pairs attend."""
    for part in call.tables:
        for table in part:
            if table is not None:
                return
    labels, plan = given["labels"], call.plan
    if not plan.total_labels or call.value_map is not None or call.edge is not None or call.need_mass:
        return
    if call.gates is not None:
        return
    if call.score.by_label or plan.k_ptr is not None or not all(part.complete for part in plan.parts):
        return
    if call.is_causal and any(offset is not None for offset in labels.offsets):  # the order counts from it
        return
    if not labels._carries_no_ids():
        raise ValueError(
            "labels must be read by a key_table, value_table, query_table or bias_table, by row_scores, value_map, "
            f"key_gate, value_gate, score=Bilinear or need_label_mass, or hide some pairs, got {labels!r} that nothing "
            "reads: pass labels=None for plain attention"
        )


def _check_score(given: Any, known: _Known, plan: LabelPlan, tables: tuple[Tables, ...]) -> Compatibility:
    """The score, which fits query, labels and tables."""
    check_score_type(given)
    score = compatibility(given)
    if score.function is not None:
        check_function(score.function_name, score.function, known.query)
    if score.additive and any(table.query is not None for table in tables):
        raise ValueError("query_table must be None with score=Additive: a^Q would add to a^K before the activation")
    if score.by_label:
        _check_one_label("score=Bilinear", plan)
        known.sizes["R"] = plan.num_labels[0]
    if score.replaces_dot:
        _check_operand(weight_of(score), score.weight, known)
    return score


def _check_value_map(given: Any, known: _Known, plan: LabelPlan) -> ValueMap:
    """The checked maps of values."""
    if isinstance(given, Tensor):
        maps = ValueMap(None, given)
    elif isinstance(given, (tuple, list)) and len(given) == 2:
        maps = ValueMap(*given)
    else:
        what = f"{len(given)} of them" if isinstance(given, (tuple, list)) else type(given).__name__
        raise TypeError(f"value_map must be a tensor or a pair (coefficients, bases), got {what}")
    _check_one_label("value_map", plan)
    known.sizes["R"] = plan.num_labels[0]
    if maps.coefficients is None:
        _check_operand(FREE_MAPS, maps.bases, known)
        return maps
    bases = check.floating("value_map bases", maps.bases)
    known.sizes["K"] = bases.shape[-3] if bases.dim() > 2 else 0
    _check_operand(BY_NAME["value_map bases"], bases, known)
    _check_operand(BY_NAME["value_map coefficients"], maps.coefficients, known)
    return maps


def _check_gates(given: Given, known: _Known, plan: LabelPlan, score: Compatibility) -> Gates:
    """The checked gates of keys and values."""
    found = {name: given.get(name) for name in ("key_gate", "value_gate")}
    if found["key_gate"] is not None and score.replaces_dot:
        raise ValueError(f"key_gate must be None with score={type(score).__name__}: it is for dot products")
    if found["value_gate"] is not None and given.get("value_map") is not None:
        raise ValueError("value_gate must be None with a value_map, whose matrices can hold it on their diagonal")
    for name, gate in found.items():
        if gate is not None:
            _check_one_label(name, plan)
            known.sizes["R"] = plan.num_labels[0]
            _check_operand(BY_NAME[name], gate, known)
    return Gates(*found.values())


def _check_one_label(what: str, plan: LabelPlan) -> None:
    """Raise unless every pair carries one label at most: a map or a gate is for one label."""
    part = plan.parts[0]
    if plan.total_labels == 0:
        raise ValueError(f"{what} needs labels, got None: no pair carries a label to look up")
    if len(plan.parts) > 1:
        raise NotImplementedError(f"{what} needs one label per pair, got a sum of {len(plan.parts)} labels")
    if part.csr is not None and part.csr.parallel and not part.edges_only:
        raise NotImplementedError(f"{what} needs one label per pair, got edges with duplicates='sum'")


def _check_mask(mask: Any, known: _Known) -> Tensor:
    """The mask with four axes; it broadcasts to all pairs."""
    check.tensor("attn_mask", mask)
    if mask.dtype != torch.bool and mask.dtype not in check.FLOATING_DTYPES:
        raise ValueError(f"attn_mask must be bool or floating, got {mask.dtype}")
    check_local(attn_mask=mask)
    check.same_device(query=known.query, attn_mask=mask)
    wanted = [known.sizes[axis] for axis in BY_NAME["attn_mask"].forms[0]]
    shown = wanted if known.layout is BATCHED else wanted[1:]
    fits = mask.dim() <= len(shown)
    for m, w in zip(mask.shape[::-1], shown[::-1], strict=False):
        fits = fits and (m == 1 or m == w)
    if not fits:
        raise ValueError(f"attn_mask must broadcast to {shown}, got {list(mask.shape)}")
    return mask if mask.dim() == 4 else mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


def _check_vectors(given: Given, known: _Known, labels: Any) -> EdgeVectors | None:
    """The checked edge vectors and their maps; None without edge vectors."""
    attr, maps = given.get("edge_attr"), {name: given.get(name) for name in ("edge_key", "edge_value")}
    if attr is None:
        for name, x in maps.items():
            if x is not None:
                raise ValueError(f"{name} must be left out without edge_attr, got {type(x).__name__}")
        return None
    if not isinstance(labels, EdgeLabels) or isinstance(labels.default, EdgeLabels):
        over = "EdgeLabels over EdgeLabels" if isinstance(labels, EdgeLabels) else type(labels).__name__
        raise ValueError(f"edge_attr needs labels of one kind of edges, EdgeLabels, got {over}")
    edges = labels.ids.shape[0]
    fits = check.tensor("edge_attr", attr).dim() == 2 and attr.shape[0] == edges
    if not fits or attr.dtype not in check.FLOATING_DTYPES:
        raise ValueError(
            f"edge_attr must be floating of shape [E, F] = [{edges}, F], got {attr.dtype} {list(attr.shape)}"
        )
    if all(x is None for x in maps.values()):
        raise ValueError("edge_attr needs edge_key or edge_value, the maps into score and value; got neither")
    known.sizes["F"] = attr.shape[1]
    check.same_device(query=known.query, edge_attr=attr)
    checked = (None if x is None else _check_operand(BY_NAME[name], x, known) for name, x in maps.items())
    return EdgeVectors(attr, *checked)
