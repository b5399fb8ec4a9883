"""One table: rows, names, the frozen row and banks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.nn import LabelTable
from tests.layers import attention_layer, decoder_layer, encoder_layer

F64 = torch.float64


def test_rows_start_as_normal_vectors_of_about_unit_length():
    rows = LabelTable(4000, 16)()
    assert rows.shape == (4000, 16)
    assert rows.dtype == torch.float32
    assert rows.std().item() == pytest.approx(0.25, rel=0.02)
    assert rows.mean().item() == pytest.approx(0.0, abs=0.01)


def test_bias_starts_at_zero():
    table = LabelTable(5, None)
    assert table().tolist() == [0.0] * 5
    assert list(table.state_dict()) == ["rows", "_extra_state"]


def test_reset_draws_again_and_keeps_the_frozen_row():
    table = LabelTable(5, 8, frozen=2)
    before = table.rows.detach().clone()
    table.reset_parameters()
    assert not torch.equal(before, table.rows)
    assert table.rows[2].abs().max() == 0


@pytest.mark.parametrize(("dim", "heads"), [(4, None), (4, 2), (None, None), (None, 2)])
def test_frozen_row_is_zero_without_gradient_before_and_after_training_and_loading(dim, heads):
    table, free = LabelTable(5, dim, heads=heads, frozen=1), LabelTable(5, dim, heads=heads)
    nn.init.ones_(free.rows)
    at = 1 if heads is None else (slice(None), 1)
    optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (table() - 1.0).square().sum().backward()
        assert table.rows.grad[at].abs().max() == 0
        optimizer.step()
    assert table()[at].abs().max() == 0
    assert table().abs().sum() > 0
    table.load_state_dict(free.state_dict())
    assert table.rows[at].abs().max() == 0
    assert table().sum() == free().sum() - free()[at].sum()
    table.load_state_dict(free.state_dict(), assign=True)
    assert table.rows[at].abs().max() == 0


def test_names_travel_with_the_state_and_must_agree():
    saved = LabelTable(3, 4, names=("child", "nsubj⁻¹", "−13"))
    LabelTable(3, 4, names=["child", "nsubj⁻¹", "−13"]).load_state_dict(saved.state_dict())
    other = LabelTable(3, 4, names=("child", "−13", "nsubj⁻¹"))
    with pytest.raises(ValueError, match=r"another at label 1: the state has 'nsubj⁻¹', this table '−13'"):
        other.load_state_dict(saved.state_dict())


def tagger(labeler, *, hook=True):
    """Make a model with a weight before a layer whose table is several modules down."""
    model = nn.Sequential(nn.Embedding(9, 12), rg.RelationEncoder(encoder_layer(12, 3, 20, labeler=labeler), 2))
    if hook:
        model.register_load_state_dict_pre_hook(rg.nn.check_label_names)
    return model


LAYERS = {
    "tables": lambda labeler: rg.RelationTables(5, 4, names=labeler.names),
    "attention": lambda labeler: attention_layer(12, 3, num_labels=5, names=labeler.names),
    "encoder layer": lambda labeler: encoder_layer(12, 3, 20, labeler=labeler),
    "encoder": lambda labeler: rg.RelationEncoder(encoder_layer(12, 3, 20, labeler=labeler), 2),
    "decoder layer": lambda labeler: decoder_layer(12, 3, 20, labeler=labeler),
    "decoder": lambda labeler: rg.RelationDecoder(decoder_layer(12, 3, 20, labeler=labeler), 2),
    "their model": tagger,
    "copied": lambda labeler: copy.deepcopy(LAYERS["encoder"](labeler)),
    "pickled": lambda labeler: pickle.loads(pickle.dumps(LAYERS["encoder"](labeler))),
}


class Turned(rg.ClippedDistance):
    """A labeler with as many labels and other names."""

    @property
    def names(self):
        return super().names[::-1]


@pytest.mark.parametrize(("kind", "assign"), [(kind, index % 2 == 0) for index, kind in enumerate(LAYERS)])
def test_a_refused_state_changes_nothing_in_a_model(kind, assign):
    saved, model = LAYERS[kind](rg.ClippedDistance(2)), LAYERS[kind](Turned(2))
    before = copy.deepcopy(model.state_dict())
    state = {name: value + 1 if value.is_floating_point() else value for name, value in saved.state_dict().items()}
    with pytest.raises(ValueError, match="another at label 0 of .*key: the state has '-2', this table '2'"):
        model.load_state_dict(state, assign=assign)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    LAYERS[kind](rg.ClippedDistance(2)).load_state_dict(state, assign=assign)


def test_a_model_of_ones_own_is_checked_by_a_call():
    saved, model = tagger(rg.ClippedDistance(2), hook=False), tagger(Turned(2), hook=False)
    with pytest.raises(ValueError, match=r"at label 0 of 1\.layers\.0\.self_attn\.tables\.key"):
        rg.nn.check_label_names(model, saved.state_dict())
    with pytest.raises(ValueError, match=r"at label 0 of at\.1\.layers\.0\.self_attn\.tables\.key"):
        rg.nn.check_label_names(model, {f"at.{key}": value for key, value in saved.state_dict().items()}, "at.")
    rg.nn.check_label_names(model, {})
    rg.nn.check_label_names(model, model.state_dict())


DAMAGED = {
    "no tensor": ("names", TypeError, "_extra_state must be a Tensor, got str"),
    "no bytes": (torch.zeros(2, 3), ValueError, r"_extra_state must be bytes in a tensor .*, got shape \[2, 3\]"),
    "no text": (torch.tensor([255, 254, 253]), ValueError, "_extra_state must hold names as JSON, got damaged bytes"),
    "endless": (torch.tensor(list(b"[" * 100_000)), ValueError, "_extra_state must hold names as JSON, got damaged"),
    "no names": (torch.tensor(list(b"[1, 2]")), ValueError, r"_extra_state must hold a list of names, got \[1, 2\]"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_names(damage):
    saved, error, match = DAMAGED[damage]
    table = LabelTable(2, 4, names=("a", "b"))
    before = table().clone()
    with pytest.raises(error, match=f"^{match}"):
        table.load_state_dict({"rows": torch.zeros(2, 4), "_extra_state": saved})
    with pytest.raises(error, match=f"^{match.replace('_extra_state', 'state', 1)}"):
        table.set_extra_state(saved)
    model = nn.ModuleDict({"tables": table})
    with pytest.raises(error, match=rf"^tables\.{match}"):
        model.load_state_dict({"tables.rows": torch.zeros(2, 4), "tables._extra_state": saved})
    assert torch.equal(table(), before)


def test_tables_without_names_load_anything_and_keep_none():
    named, nameless = LabelTable(2, 4, names=("a", "b")), LabelTable(2, 4)
    nameless.load_state_dict(named.state_dict())
    assert nameless.names is None
    assert torch.equal(nameless(), named())
    named.load_state_dict(LabelTable(2, 4).state_dict())
    assert named.names == ("a", "b")


def test_bank_computes_the_rows_and_learns():
    table = LabelTable(None, 4, bank=nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)))
    features = torch.randn(6, 3, requires_grad=True)
    rows = table(features)
    assert torch.equal(rows, table.bank(features))
    rows.sum().backward()
    assert features.grad.abs().sum() > 0
    assert all(p.grad.abs().sum() > 0 for p in table.parameters())
    assert not any(name == "rows" for name, _ in table.named_parameters())


@pytest.mark.parametrize(
    ("options", "out", "wanted"),
    [
        ({"num_labels": None, "dim": 4}, (3, 2, 6, 4), r"\[R', 4\] or .*, got \[3, 2, 6, 4\]"),
        ({"num_labels": 7, "dim": 4}, (3, 1, 6, 4), r"\[7, 4\] or \[B, 1, 7, 4\], got \[3, 1, 6, 4\]"),
        ({"num_labels": None, "dim": 4, "heads": 2}, (3, 6, 4), r"\[2, R', 4\] or \[B, 2, R', 4\], got \[3, 6, 4\]"),
    ],
)
def test_bank_of_another_shape(options, out, wanted):
    class Fixed(nn.Module):
        def forward(self, features):
            return torch.zeros(out)

    with pytest.raises(ValueError, match=f"the bank's output must have shape {wanted}"):
        LabelTable(**options, bank=Fixed())(torch.zeros(6, 1))


def test_features_and_banks_belong_together():
    with pytest.raises(ValueError, match="features .*must be None for a table without a bank"):
        LabelTable(3, 4)(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="features .*must be given to a table with a bank, got None"):
        LabelTable(None, 4, bank=nn.Linear(2, 4))()


def test_copies_pickles_and_casts():
    table = LabelTable(3, 4, names=("a", "b", "c"), frozen=1)
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert torch.equal(other(), table())
        assert other.names == table.names
    assert table.to(torch.float64)().dtype == F64
    assert table()[1].tolist() == [0.0] * 4


def test_repr():
    assert repr(LabelTable(3, 4)) == "LabelTable(3, 4)"
    assert repr(LabelTable(3, None, heads=2, frozen=0, names=("a", "b", "c"))) == (
        "LabelTable(3, None, heads=2, frozen=0, names=('a', 'b', 'c'))"
    )
    names = tuple(str(n) for n in range(9))
    assert repr(LabelTable(9, 4, names=names)) == "LabelTable(9, 4, names=('0', '1', ..., '8'))"
