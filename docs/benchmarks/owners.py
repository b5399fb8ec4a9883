"""Wide and two-dimensional tables: relgraph against transformers' own code for the models that have them.

Both sides get the same query, key, value and tables, so projections do not count. Their outputs and all gradients are
compared before the timing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import relgraph as rg
from docs.benchmarks.measure import Clock, Rows, quartiles
from docs.benchmarks.peers import Call, Given, hand_over
from docs.benchmarks.run import once
from docs.benchmarks.ways import Made, NotRun, Wrong

ROUNDING = 5e-5  # relative to norms; gradients of tables, which are sums over all pairs, differed by up to 1e-5
PACKAGE = "transformers"


@dataclass(frozen=True)
class Case:
    """The attention of one model at one length.

    Attributes:
        name: the model.
        length: number of positions.
        heads: H; each head has 64 channels.
        tables: the shape of each table in transformers.
        theirs: the calls of transformers' code, by the name of its attention implementation.
        ours: the call of relgraph, with one implementation.
    """

    name: str
    length: int
    heads: int
    tables: dict[str, tuple[int, ...]]
    theirs: Callable[[Case, dict[str, Tensor]], dict[str, Call]]
    ours: Callable[[Case, dict[str, Tensor], str | None], Call]

    def leaves(self) -> dict[str, Tensor]:
        """Query, key and value ``[1, H, N, 64]`` and the tables, all of which require gradients."""
        generator = torch.Generator().manual_seed(0)
        shapes = dict.fromkeys(("query", "key", "value"), (1, self.heads, self.length, SIZE)) | self.tables
        scales = {name: 1.0 if name in ("query", "key", "value") else SIZE**-0.5 for name in shapes}
        return {
            name: (scales[name] * torch.randn(*shape, generator=generator)).requires_grad_()
            for name, shape in shapes.items()
        }


SIZE = 64
BUCKETS, MAX_POSITION = 256, 512  # of DeBERTa-v3: 2 · 256 rows
LEFT, RIGHT = 64, 8  # of Wav2Vec2-BERT


class GivenTogether(nn.Module):
    """Replaces one projection to query, key and value: returns ``[B, height, width, 3·H·D]``."""

    def __init__(self, *projected: Tensor) -> None:
        super().__init__()
        self.projected = projected

    def forward(self, hidden: Tensor) -> Tensor:
        # [3, B, H, N, D] to [B, N, 3, H, D], a copy, like the output of a projection
        together = torch.stack(self.projected).permute(1, 3, 0, 2, 4)
        return together.reshape(*hidden.shape[:3], -1)


def module_of(name: str) -> Any:
    """A module of transformers' models.

    Raises:
        NotRun: transformers is not installed, or this version has no such module.
    """
    try:
        return import_module(f"{PACKAGE}.models.{name}.modeling_{name}")
    except ImportError as error:
        raise NotRun(f"not run: transformers is not installed: {error}") from None


def as_heads(flat: Tensor, heads: int) -> Tensor:
    """``[B, N, H·D]`` as ``[B, H, N, D]``."""
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def log_buckets(case: Case) -> rg.Labels:
    """DeBERTa's labels from transformers' own function: the logarithmic bucket of i - j, shifted to begin at 0."""
    reach = case.length - 1
    back = -torch.arange(-reach, reach + 1)
    bucket = module_of("deberta_v2").make_log_bucket_position(back, BUCKETS, MAX_POSITION).long()
    lookup = (bucket + BUCKETS).clamp(0, 2 * BUCKETS - 1).tolist()
    return rg.DistanceLabels(case.length, case.length, lookup=lookup, left=reach, num_labels=2 * BUCKETS)


def their_deberta(case: Case, leaves: dict[str, Tensor]) -> dict[str, Call]:
    """``DisentangledSelfAttention``; its relative positions are made once, as its encoder does for all layers."""
    code = module_of("deberta_v2")
    config = import_module(PACKAGE).DebertaV2Config(
        hidden_size=case.heads * SIZE, num_attention_heads=case.heads, relative_attention=True,
        position_buckets=BUCKETS, max_position_embeddings=MAX_POSITION, pos_att_type=["c2p", "p2c"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = code.DisentangledSelfAttention(config)
    query, key, value, key_table, query_table = leaves.values()
    module.query_proj, module.key_proj, module.value_proj = Given(query), Given(key), Given(value)
    module.pos_key_proj, module.pos_query_proj = Given(key_table[None]), Given(query_table[None])
    relative = code.build_relative_position(query, key, bucket_size=BUCKETS, max_position=MAX_POSITION)
    mask = torch.ones(1, 1, case.length, case.length, dtype=torch.bool)
    hidden, rows = torch.empty(1, case.length, case.heads * SIZE), torch.empty(2 * BUCKETS, case.heads * SIZE)

    def call() -> Tensor:
        out = module(hidden, mask, relative_pos=relative, rel_embeddings=rows)
        return as_heads(out[0] if isinstance(out, tuple) else out, case.heads)

    return {"own": call}


def our_deberta(case: Case, leaves: dict[str, Tensor], impl: str | None) -> Call:
    """Key and query tables per head; the labels are made once, like theirs."""
    labels = log_buckets(case)
    query, key, value, key_table, query_table = leaves.values()
    return lambda: rg.relation_attention(
        query, key, value, labels, key_table, query_table=query_table, scale=(3 * SIZE) ** -0.5, impl=impl
    )


def their_sam(case: Case, leaves: dict[str, Tensor]) -> dict[str, Call]:
    """``SamVisionAttention`` over a whole square picture, eager and by fused attention with a bias."""
    code, side = module_of("sam"), side_of(case)
    config = import_module(PACKAGE).SamVisionConfig(
        hidden_size=case.heads * SIZE, num_attention_heads=case.heads, image_size=16 * side, patch_size=16,
        attention_dropout=0.0,
    )  # fmt: skip
    query, key, value, rows, columns = leaves.values()
    hidden = torch.empty(1, side, side, case.heads * SIZE)

    def made(attention: type) -> Call:
        module = attention(config, window_size=0)
        module.qkv, module.proj = GivenTogether(query, key, value), nn.Identity()
        hand_over(module, "rel_pos_h", rows)
        hand_over(module, "rel_pos_w", columns)
        return lambda: as_heads(module(hidden)[0].flatten(1, 2), case.heads)

    return {"eager": made(code.SamVisionAttention), "sdpa": made(code.SamVisionSdpaAttention)}


def our_sam(case: Case, leaves: dict[str, Tensor], impl: str | None) -> Call:
    """``GridRows + GridColumns``; their tables run from far right to far left, and have no scale."""
    side = side_of(case)
    labels = (rg.labelers.GridRows(side - 1) + rg.labelers.GridColumns(side - 1))(side, side)
    query, key, value, rows, columns = leaves.values()
    return lambda: rg.relation_attention(
        query, key, value, labels, tuple(table.flip(0) * SIZE**0.5 for table in (rows, columns)), impl=impl
    )


def side_of(case: Case) -> int:
    """The side of the square with this number of positions."""
    return round(case.length**0.5)


def their_t5(case: Case, leaves: dict[str, Tensor]) -> dict[str, Call]:
    """``T5Attention`` of an encoder's first layer, which computes the bias."""
    query, key, value, table = leaves.values()
    hidden = torch.empty(1, case.length, case.heads * SIZE)

    def made(implementation: str) -> Call:
        config = import_module(PACKAGE).T5Config(
            d_model=case.heads * SIZE, d_kv=SIZE, num_heads=case.heads, dropout_rate=0.0, is_decoder=False
        )
        config._attn_implementation = implementation
        module = module_of("t5").T5Attention(config, has_relative_attention_bias=True)
        module.q, module.k, module.v, module.o = Given(query), Given(key), Given(value), nn.Identity()
        hand_over(module.relative_attention_bias, "weight", table)
        # transformers 4.56 requires the positions, 5 does not
        asked = "cache_position" in inspect.signature(module.forward).parameters
        given = {"cache_position": torch.arange(case.length)} if asked else {}
        return lambda: as_heads(module(hidden, **given)[0], case.heads)

    return {name: made(name) for name in implementations("t5")}


def our_t5(case: Case, leaves: dict[str, Tensor], impl: str | None) -> Call:
    """A bias by bucket, without scale; every call makes the labels, as in theirs."""
    labeler = rg.BucketedDistance(32, 128)
    query, key, value, table = leaves.values()
    return lambda: rg.relation_attention(
        query, key, value, labeler(case.length), bias_table=table.T, scale=1.0, impl=impl
    )


def their_wav2vec2(case: Case, leaves: dict[str, Tensor]) -> dict[str, Call]:
    """``Wav2Vec2BertSelfAttention`` with ``relative_key``."""
    query, key, value, table = leaves.values()
    hidden = torch.empty(1, case.length, case.heads * SIZE)

    def made(implementation: str) -> Call:
        config = import_module(PACKAGE).Wav2Vec2BertConfig(
            hidden_size=case.heads * SIZE, num_attention_heads=case.heads, position_embeddings_type="relative_key",
            left_max_position_embeddings=LEFT, right_max_position_embeddings=RIGHT, attention_dropout=0.0,
        )  # fmt: skip
        config._attn_implementation = implementation
        module = module_of("wav2vec2_bert").Wav2Vec2BertSelfAttention(config)
        module.linear_q, module.linear_k, module.linear_v = Given(query), Given(key), Given(value)
        module.linear_out = nn.Identity()
        hand_over(module.distance_embedding, "weight", table)
        return lambda: as_heads(module(hidden)[0], case.heads)

    return {name: made(name) for name in implementations("wav2vec2_bert")}


def our_wav2vec2(case: Case, leaves: dict[str, Tensor], impl: str | None) -> Call:
    """A key table for all heads; every call makes the labels, as in theirs."""
    labeler = rg.ClippedDistance((LEFT, RIGHT))
    query, key, value, table = leaves.values()
    return lambda: rg.relation_attention(query, key, value, labeler(case.length), table, impl=impl)


def implementations(name: str) -> tuple[str, ...]:
    """The attention implementations of transformers for this model."""
    return ("eager", "sdpa") if hasattr(module_of(name), "ALL_ATTENTION_FUNCTIONS") else ("eager",)


def cases(quick: bool = False) -> list[Case]:
    """The cases to compare; at toy sizes for a quick run."""
    wide: dict[str, tuple[int, ...]] = dict.fromkeys(("key_table", "query_table"), (12, 2 * BUCKETS, SIZE))
    lengths, side = ((24, 40), 4) if quick else ((512, 2048), 32)
    grid: dict[str, tuple[int, ...]] = dict.fromkeys(("row_table", "column_table"), (2 * side - 1, SIZE))
    rows = LEFT + RIGHT + 1
    return [
        *(Case("DeBERTa-v3", length, 12, wide, their_deberta, our_deberta) for length in lengths),
        Case(f"SAM, {side} × {side}", side**2, 12, grid, their_sam, our_sam),
        Case("T5", 40 if quick else 2048, 8, {"bias_table": (32, 8)}, their_t5, our_t5),
        Case(
            "Wav2Vec2-BERT", 90 if quick else 1000, 16, {"key_table": (rows, SIZE)}, their_wav2vec2, our_wav2vec2
        ),
    ]  # fmt: skip


def compared(case: Case, impl: str | None) -> tuple[dict[str, Made], float]:
    """Every call of a case, ours last, and the largest difference between them.

    Raises:
        NotRun: transformers is missing.
        Wrong: outputs or gradients differ by more than rounding.
    """
    leaves = case.leaves()
    calls = case.theirs(case, leaves) | {"relgraph": case.ours(case, leaves, impl)}
    made = {name: Made(call, leaves) for name, call in calls.items()}
    ours, worst = results_of(made["relgraph"]), 0.0
    for name in calls:
        for what, wanted in results_of(made[name]).items():
            error = float((ours[what] - wanted).norm() / wanted.norm())
            if not error <= ROUNDING:
                raise Wrong(f"{case.name}: {what} is {error:.2g} from {name}, at most {ROUNDING:g} is allowed")
            worst = max(worst, error)
    return made, worst


def results_of(made: Made) -> dict[str, Tensor]:
    """The output of a call, and all gradients."""
    output = made.call()
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(output, list(made.leaves.values()), grad)
    return {"output": output.detach(), **dict(zip(made.leaves, grads, strict=True))}


def measured(case: Case, impl: str | None, count: int) -> Rows:
    """A row per implementation of theirs: milliseconds, and the ratio of our time to theirs with quartiles."""
    made, worst = compared(case, impl)
    clock, grad = Clock(), torch.ones(1, case.heads, case.length, SIZE)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    for turn in range(count + 1):
        for name, way in made.items():
            times = once(way, grad, clock)
            if turn:
                taken[name].append(times)
    ours = taken.pop("relgraph")
    rows: Rows = []
    for name, theirs in taken.items():
        row: dict[str, object] = {"model": case.name, "n": case.length, "theirs": name}
        for index, what in ((0, "forward"), (1, "forward+backward")):
            row[f"{what}, theirs ms"] = round(quartiles([times[index] for times in theirs])[1], 1)
            row[f"{what}, ours ms"] = round(quartiles([times[index] for times in ours])[1], 1)
            pairs = zip(ours, theirs, strict=True)
            low, median, high = quartiles([mine[index] / other[index] for mine, other in pairs])
            row[f"{what}, ours / theirs"] = f"{median:.2f} ({low:.2f}–{high:.2f})"
        rows.append(row | {"difference": f"{worst:.0e}"})
    return rows
