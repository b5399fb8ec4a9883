"""fairseq2's Shaw positions: rows by j - i, clipped at different distances on both sides; a value table or none."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

import relgraph as rg
from relgraph.interop.checkpoints import from_fairseq2
from tests.interop.checkpoints.old import attend, heads_of, joined, random_state, same_with_gradients

WIDTH, HEADS, LEFT, RIGHT = 12, 3, 5, 2
AT = "encoder.layers.0.self_attn."
MAPS = ("q_proj", "k_proj", "v_proj", "output_proj")


def shapes(values=False, biased=MAPS):
    found = {f"{AT}{name}.weight": (WIDTH, WIDTH) for name in MAPS}
    found |= {f"{AT}{name}.bias": (WIDTH,) for name in biased}
    for kind in "kv" if values else "k":
        found[f"{AT}sdpa.rel_{kind}_embed.weight"] = (LEFT + 1 + RIGHT, WIDTH // HEADS)
    return found


def old_attention(state, x, hidden=None):
    def mapped(name, y):
        return linear(y, state[f"{AT}{name}.weight"], state.get(f"{AT}{name}.bias"))

    q, k, v = (heads_of(mapped(name, x), WIDTH // HEADS) for name in MAPS[:3])
    position = torch.arange(x.shape[1])
    row = (position[None, :] - position[:, None]).clamp(-LEFT, RIGHT) + LEFT  # j - i
    tables = [state.get(f"{AT}sdpa.rel_{kind}_embed.weight") for kind in "kv"]
    vectors = [None if table is None else table[row] for table in tables]
    return mapped("output_proj", joined(attend(q, k, v, *vectors, hidden=hidden)))


@pytest.mark.parametrize(
    ("length", "values", "biased"),
    [(1, True, MAPS), (3, False, ()), (6, True, ("output_proj",)), (11, False, MAPS)],
)
def test_attention(length, values, biased):
    state = random_state(shapes(values, biased))
    layer, labeler = from_fairseq2(state, clip=(LEFT, RIGHT), prefix=AT)
    assert (layer.num_heads, labeler) == (HEADS, rg.ClippedDistance((LEFT, RIGHT)))
    assert layer.tables.kinds == (("key", "value") if values else ("key",))
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    same_with_gradients(lambda x: layer(x, labels=labeler(length)), lambda x: old_attention(state, x), x)


def test_clip_and_tables_must_fit():
    state = random_state(shapes())
    with pytest.raises(ValueError, match=r"clip must be that of .*rel_k_embed.weight', whose 8 rows"):
        from_fairseq2(state, clip=(LEFT, LEFT), prefix=AT)
    state = random_state(shapes(values=True))
    name = f"{AT}sdpa.rel_v_embed.weight"
    with pytest.raises(ValueError, match=rf"must have shape \[8, 4\] as '{name}', got \[7, 4\]"):
        from_fairseq2({**state, name: state[name][:7]}, clip=(LEFT, RIGHT), prefix=AT)
