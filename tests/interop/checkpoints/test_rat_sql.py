"""RAT-SQL's encoder: a key and a value embedding of relations in each layer, norms before each step."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm, linear

import relgraph as rg
from relgraph.interop.checkpoints import from_rat_sql
from tests.interop.checkpoints.old import attend, heads_of, joined, random_state, same, same_with_gradients

WIDTH, HEADS, INNER = 12, 3, 20
AT = "encoder.encs_update.encoder."


def shapes(depth, relations=51):
    found = {f"{AT}norm.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    for number in range(depth):
        layer = f"{AT}layers.{number}."
        sizes = {f"self_attn.linears.{at}": (WIDTH, WIDTH) for at in range(4)}
        sizes |= {"feed_forward.w_1": (INNER, WIDTH), "feed_forward.w_2": (WIDTH, INNER)}
        for name, size in sizes.items():
            found |= {f"{layer}{name}.weight": size, f"{layer}{name}.bias": size[:1]}
        found |= {f"{layer}sublayer.{at}.norm.{kind}": (WIDTH,) for at in range(2) for kind in ("weight", "bias")}
        found |= {f"{layer}relation_{kind}_emb.weight": (relations, WIDTH // HEADS) for kind in "kv"}
    return found


def old_encoder(state, depth, x, relation):
    def mapped(name, y):
        return linear(y, state[f"{AT}{name}.weight"], state[f"{AT}{name}.bias"])

    def normed(name, y):
        return layer_norm(y, [WIDTH], state[f"{AT}{name}.weight"], state[f"{AT}{name}.bias"])

    for number in range(depth):
        layer = f"layers.{number}."
        y = normed(f"{layer}sublayer.0.norm", x)
        q, k, v = (heads_of(mapped(f"{layer}self_attn.linears.{at}", y), WIDTH // HEADS) for at in range(3))
        r_k, r_v = (state[f"{AT}{layer}relation_{kind}_emb.weight"][relation] for kind in "kv")
        x = x + mapped(f"{layer}self_attn.linears.3", joined(attend(q, k, v, r_k, r_v)))
        inner = mapped(f"{layer}feed_forward.w_1", normed(f"{layer}sublayer.1.norm", x)).relu()
        x = x + mapped(f"{layer}feed_forward.w_2", inner)
    return normed("norm", x)


@pytest.fixture
def schema():
    columns = [(None, ["*"]), (0, ["singer", "id"]), (0, ["age"]), (1, ["singer", "id"])]
    question = ["how", "many", "singers", "are", "older", "than", "20"]
    return rg.labelers.Schema(question, columns, [["singers"], ["concert"]], primary_keys=[1], foreign_keys=[(3, 1)])


def test_encoder(schema):
    state = random_state(shapes(3))
    encoder, labeler = from_rat_sql(state, prefix=AT)
    assert labeler == rg.labelers.SchemaRelations(2, released=True)
    assert (encoder.layers[0].self_attn.num_heads, encoder.num_layers) == (HEADS, 3)
    labels = labeler(schema)
    x = torch.randn(1, len(schema), WIDTH, dtype=torch.float64)
    relation = labels.to_dense()[0]
    assert relation.unique().numel() > 10
    same_with_gradients(lambda x: encoder(x, labels=labels), lambda x: old_encoder(state, 3, x, relation), x)


def test_the_rows_tell_the_clip():
    for clip, rows in enumerate((39, 45, 51, 57)):
        _, labeler = from_rat_sql(random_state(shapes(1, rows)), prefix=AT)
        assert labeler == rg.labelers.SchemaRelations(clip, released=True)


@pytest.mark.parametrize("rows", [37, 33, 40])
def test_other_relations_need_a_labeler(rows):
    state = random_state(shapes(2, rows))
    with pytest.raises(ValueError, match=f"labeler must be given for .*relation_k_emb.weight', which has {rows} rows"):
        from_rat_sql(state, prefix=AT)
    labeler = rg.Segments(1)
    with pytest.raises(ValueError, match=f"labeler must have as many labels as .* has rows, {rows}, got 1"):
        from_rat_sql(state, prefix=AT, labeler=labeler)
    labeler = rg.FromFunction(lambda i, j: (i * 7 + j) % rows, rows)
    encoder, given = from_rat_sql(state, prefix=AT, labeler=labeler)
    assert given is labeler
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    same(encoder(x), old_encoder(state, 2, x, labeler(9).to_dense()[0][0]))


def test_a_missing_layer_is_named():
    state = {name: x for name, x in random_state(shapes(3)).items() if ".layers.1." not in name}
    with pytest.raises(ValueError, match="must have layers 0 to 1 under .*, which has 2 layers, got none of number 1"):
        from_rat_sql(state, prefix=AT)


def test_the_pointer_is_not_an_encoder():
    state = {"align_attn.relation_k_emb.weight": torch.zeros(51, WIDTH)}
    with pytest.raises(ValueError, match=r"prefix must be that of an encoder, with 'layers.0.relation_k_emb.weight',"):
        from_rat_sql(state, prefix="align_attn.")
