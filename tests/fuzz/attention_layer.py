"""``rg.RelationAttention`` held to the oracle: projections by hand around it, and masks the other way round."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

import relgraph as rg
from relgraph.nn.projections import BIASED
from tests.fuzz.cases import KINDS, Case, draw, given_offset, is_sum
from tests.fuzz.edge_layers import near
from tests.fuzz.labels import Written
from tests.fuzz.oracle import Truth, solve
from tests.fuzz.scores import layer_biases, layer_options, layer_parameters, maps_one_label, scatter
from tests.layers import attention_layer

F64 = torch.float64


def check_attention_layer(seed: int) -> None:
    """The layer on the labels of a seed: output, weights, mass, and gradients of inputs and tables.

    Raises:
        FuzzError: something is not what the oracle gives.
    """
    rng = Random(f"layer {seed}")
    torch.manual_seed(seed)
    case = draw(seed)
    if isinstance(case.labels, Written) and case.labels.raw:
        return
    frame = case.frame
    case.size = case.value_size = rng.choice([1, 2, 4])
    case.scale, case.dropout_p, case.keep = None, 0.0, None
    case.need_weights, case.need_mass = rng.random() < 0.5, case.labels is not None and rng.random() < 0.5
    width = case.heads * case.size
    kinds = [kind for kind in KINDS if rng.random() < 0.5] or ["key"]
    labelled = case.labels is not None and all(case.num_labels)  # a layer has no tables of no rows
    if case.labels is not None and not labelled:
        return
    options: dict[str, Any] = {"bias": rng.random() < 0.5, "num_kv_heads": case.kv_heads}
    if labelled:
        count = case.num_labels if is_sum(case) else case.num_labels[0]
        options |= {"num_labels": count, "tables": kinds, "per_head": rng.random() < 0.5}
    cross = frame.q_sizes != frame.k_sizes or rng.random() < 0.3
    options |= {"kdim": width + 1, "vdim": width + 2} if cross and rng.random() < 0.5 else {}
    maps = case.num_labels[0] if labelled and maps_one_label(case.labels) else 0
    own = Random(f"scores of layer {seed}")
    options |= layer_options(case, own, count=maps, kinds=kinds)
    options |= layer_biases(case, Random(f"biases of layer {seed}"), keys=labelled and "key" in kinds)
    options["sink"] = Random(f"sink of layer {seed}").random() < 0.2
    options |= _other_shapes(case, Random(f"shapes of layer {seed}"))
    width = options.pop("width", width)
    layer = attention_layer(width, case.heads, **options).double()
    scatter(layer, torch.Generator().manual_seed(seed))
    x = _inputs(case, layer, cross=cross)
    _fill(case, layer, x)
    rows = _draw_rows(case, own, seed) if labelled and "key" not in kinds and own.random() < 0.5 else {}
    masks = _masks(case, rng)
    out_grad = torch.randn(*x[0].shape[:-1], width, dtype=F64)
    by_head = (out_grad @ layer.out_proj.weight).detach().unflatten(-1, (case.heads, case.size))
    case.incoming = {"z": by_head.transpose(0, 1)[None] if frame.packed else by_head.transpose(1, 2)}
    truth = solve(case, F64)
    leaves = [part.clone().requires_grad_() for part in (x if cross else x[:1])]
    result = layer(
        *leaves, labels=None if case.labels is None else case.labels.build(), **masks, is_causal=case.is_causal,
        q_offset=given_offset(case), need_weights=case.need_weights, need_label_mass=case.need_mass,
        row_scores=_as_given(case, rows),
    )  # fmt: skip
    out, *extra = result if isinstance(result, tuple) else (result,)
    what = f"seed {seed}: {layer} with {options} and masks {[*masks]}\n{case.describe()}"
    _check_outputs(what, case, layer, truth, out, extra)
    learned = {**dict(enumerate(leaves)), **_table_parameters(case, layer), **layer_parameters(layer), **rows}
    grads = torch.autograd.grad(out, list(learned.values()), out_grad, allow_unused=True)
    wanted = _wanted_grads(case, layer, truth, cross=cross)
    wanted |= {name: truth.values["grad", name] for name in (*layer_parameters(layer), *rows)}
    for (name, leaf), grad in zip(learned.items(), grads, strict=True):
        near(f"{what}: gradient of {name}", torch.zeros_like(leaf) if grad is None else grad, wanted[name])


def _other_shapes(case: Case, rng: Random) -> dict[str, Any]:
    """For some seeds a width that the heads do not share, a scale, and biases on some of the projections."""
    found: dict[str, Any] = {}
    if rng.random() < 0.3:
        found |= {"width": rng.choice([1, 3, 6]), "head_dim": case.size}
    if rng.random() < 0.3:
        found["scale"] = case.scale = rng.choice([1.0, 0.3])
    if rng.random() < 0.3:
        found["bias"] = [name for name in BIASED if rng.random() < 0.5]
    return found


def _inputs(case: Case, layer: rg.RelationAttention, *, cross: bool) -> list[Tensor]:
    """Query, key and value as they go in; one and the same without ``cross``."""
    frame = case.frame

    def nodes(length: int, width: int) -> Tensor:
        return torch.randn(*(() if frame.packed else (frame.batch,)), length, width, dtype=F64)

    query = nodes(frame.q_len, layer.embed_dim)
    return [query, nodes(frame.k_len, layer.kdim), nodes(frame.k_len, layer.vdim)] if cross else [query] * 3


def _projections(layer: rg.RelationAttention) -> tuple[list[Tensor], list[Any]]:
    """Weights and biases of query, key and value."""
    kv = layer.num_kv_heads * layer.head_dim
    sizes = [layer.num_heads * layer.head_dim, kv, kv]
    if layer.in_proj_weight is None:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    else:
        weights = list(layer.in_proj_weight.split(sizes))
    biases = [layer.q_proj_bias, layer.k_proj_bias, layer.v_proj_bias]
    if layer.in_proj_bias is not None:
        biases = list(layer.in_proj_bias.split(sizes))
    return [w.detach() for w in weights], [0.0 if b is None else b.detach() for b in biases]


def _fill(case: Case, layer: rg.RelationAttention, x: list[Tensor]) -> None:
    """What the layer asks of the primitive: projected inputs, its tables, and the mask of the case."""
    mask = case.leaves.get("mask")
    weights, biases = _projections(layer)
    case.leaves = {} if mask is None else {"mask": mask}
    for name, part, weight, bias in zip(("query", "key", "value"), x, weights, biases, strict=True):
        heads = (part @ weight.T + bias).unflatten(-1, (-1, case.size))
        case.leaves[name] = heads.transpose(0, 1)[None] if case.frame.packed else heads.transpose(1, 2)
    parameters = _table_parameters(case, layer) | layer_parameters(layer)
    case.leaves |= {name: weight.detach() for name, weight in parameters.items()}
    case.learned = set()


def _draw_rows(case: Case, rng: Random, seed: int) -> dict[Any, Tensor]:
    """Scores by row of the parts, ``[B, H, N_q, R]``, some parts without; the case gets them too."""
    generator = torch.Generator().manual_seed(seed)
    leading = (case.frame.batch, case.heads, case.frame.q_len)
    rows: dict[Any, Tensor] = {}
    for part, count in enumerate(case.num_labels):
        if not part or rng.random() < 0.7:
            rows["rows", part] = torch.randn(*leading, count, generator=generator, dtype=F64)
    case.leaves |= {name: x.clone() for name, x in rows.items()}
    return {name: x.requires_grad_() for name, x in rows.items()}


def _as_given(case: Case, rows: dict[Any, Tensor]) -> Any:
    """Scores by row as the layer takes them."""
    found = [rows.get(("rows", part)) for part in range(len(case.num_labels))]
    found = [x[0] if x is not None and case.frame.packed else x for x in found]
    if not rows:
        return None
    return tuple(found) if is_sum(case) else found[0]


def _table_parameters(case: Case, layer: rg.RelationAttention) -> dict[Any, Tensor]:
    """The layer's tables by the oracle's names."""
    found: dict[Any, Tensor] = {}
    for name, tables in ({} if layer.tables is None else layer.tables()).items():
        for part, table in enumerate(tables if isinstance(tables, tuple) else (tables,)):
            found[name.removesuffix("_table"), part] = table
    return found


def _masks(case: Case, rng: Random) -> dict[str, Tensor]:
    """The mask of the case as the layer takes it, where True blocks; with padding beside it."""
    frame = case.frame
    full = (frame.batch, case.heads, frame.q_len, frame.k_len)
    given: dict[str, Tensor] = {}
    if case.bool_mask is not None:
        given["attn_mask"] = ~case.bool_mask.expand(full)
    elif "mask" in case.leaves:
        given["attn_mask"] = case.leaves["mask"].expand(full)
    if "attn_mask" in given:
        mask, form = given["attn_mask"], rng.choice(["all", "flat", "pairs"])
        if form == "pairs" or frame.packed:  # the same for all rows and heads
            mask = mask[:1, :1] if mask.shape[0] and mask.shape[1] else mask.new_zeros((1, 1, *full[2:]))
            given["attn_mask"] = mask[0, 0]
            _take(case, mask)
        elif form == "flat":
            given["attn_mask"] = mask.reshape(frame.batch * case.heads, *full[2:])
    if not frame.packed and rng.random() < 0.4:
        padding = torch.rand(frame.batch, frame.k_len) < 0.3
        given["key_padding_mask"] = padding
        seen = ~padding[:, None, None]
        case.bool_mask = seen if case.bool_mask is None else case.bool_mask & seen
    return given


def _take(case: Case, mask: Tensor) -> None:
    if case.bool_mask is not None:
        case.bool_mask = ~mask
    else:
        case.leaves["mask"] = mask


def _check_outputs(
    what: str, case: Case, layer: rg.RelationAttention, truth: Truth, out: Tensor, extra: list[Any]
) -> None:
    packed = case.frame.packed
    z = truth.values["z"]
    z = z[0].transpose(0, 1) if packed else z.transpose(1, 2)
    with torch.no_grad():
        near(f"{what}: output", out, layer.out_proj(z.flatten(-2)))
    if case.need_weights:
        near(f"{what}: weights", extra.pop(0), truth.values["weights"][0] if packed else truth.values["weights"])
    if case.need_mass:
        (masses,) = extra
        for part, mass in enumerate(masses if isinstance(masses, tuple) else (masses,)):
            wanted = truth.values["mass", part]
            near(f"{what}: mass of part {part}", mass, wanted[0] if packed else wanted)


def _wanted_grads(case: Case, layer: rg.RelationAttention, truth: Truth, *, cross: bool) -> dict[Any, Tensor]:
    weights, _ = _projections(layer)
    grads = []
    for name, weight in zip(("query", "key", "value"), weights, strict=True):
        grad = truth.values["grad", name]
        grad = grad[0].transpose(0, 1) if case.frame.packed else grad.transpose(1, 2)
        grads.append(grad.flatten(-2) @ weight)
    wanted: dict[Any, Tensor] = dict(enumerate(grads if cross else [grads[0] + grads[1] + grads[2]]))
    return wanted | {name: truth.values["grad", name] for name in _table_parameters(case, layer)}
