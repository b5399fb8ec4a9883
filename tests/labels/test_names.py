"""Labels carry the names of the labeler that made them."""

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

import relgraph as rg
from relgraph import ClippedDistance, Segments, Window
from tests.layers import encoder_layer

FAR, NEAR = ClippedDistance(1), rg.labelers.FromFunction(lambda i, j: (i + j) % 3, 3, names=["a", "b", "c"])


@pytest.mark.parametrize(
    "derive",
    [
        lambda labels: labels,
        lambda labels: labels[1:3],
        lambda labels: labels.cols(1, 3),
        lambda labels: labels.to("cpu"),
        copy.deepcopy,
        lambda labels: pickle.loads(pickle.dumps(labels)),
        lambda labels: rg.labels.restrict(labels, Window(2)(4)),
    ],
)
def test_kept_by_what_is_derived(derive):
    assert derive(FAR(4)).names == FAR.names


def test_one_tuple_for_all():
    labeler = ClippedDistance(7)
    assert labeler(4).names is labeler(5).names


def test_of_sums_and_products():
    assert rg.labels.total(FAR(4), NEAR(4)).names == (FAR.names, NEAR.names)
    assert (FAR + NEAR)(4).names == (FAR.names, NEAR.names)
    product = Segments(2) * FAR
    assert product(torch.zeros(1, 4, dtype=torch.long)).names == product.names


def test_outside_of_leaves_and_equality():
    labels, same = NEAR(4), rg.DenseLabels(NEAR(4).to_dense()[0], 3)
    assert same.names is None
    assert labels == same
    leaves, spec = pytree.tree_flatten(labels)
    assert leaves
    assert spec == pytree.tree_flatten(same)[1]


@pytest.mark.parametrize(
    "layer",
    [
        rg.RelationAttention(8, 2, labeler=FAR),
        encoder_layer(8, 2, labeler=FAR),
        rg.RelationAttention(8, 2, tables=rg.RelationTables(3, 4, names=FAR.names)),
    ],
)
def test_layers_refuse_those_of_another_labeler(layer):
    with pytest.raises(ValueError, match="labels must be those of a labeler with the names of the tables"):
        layer(torch.randn(1, 4, 8), labels=NEAR(4))


def test_layers_take_labels_without_names():
    layer, x = rg.RelationAttention(8, 2, labeler=FAR), torch.randn(1, 4, 8)
    assert torch.equal(layer(x, labels=rg.DenseLabels(FAR(4).to_dense()[0], 3)), layer(x, labels=FAR(4)))


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (ClippedDistance(1)(4), {}),
        (rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 1, q_len=4, default=-1), {}),
        (rg.DenseLabels(torch.zeros(4, 4, dtype=torch.long), 1), {"is_causal": True}),
    ],
)
def test_attention_refuses_ids_that_nothing_reads(labels, options):
    x = torch.randn(1, 1, 4, 2)
    with pytest.raises(ValueError, match="labels must be read by a key_table, value_table"):
        rg.relation_attention(x, x, x, labels, **options)
    rg.which_impl(x, x, x, labels, **options)  # a question reads nothing


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (Window(1)(4), {}),
        (rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 1, q_len=4), {}),
        (ClippedDistance(1)(4), {"bias_table": torch.ones(3)}),
    ],
)
def test_attention_takes_ids_that_say_who_attends_or_are_read(labels, options):
    x = torch.randn(1, 1, 4, 2)
    assert not torch.equal(rg.relation_attention(x, x, x, labels, **options), rg.relation_attention(x, x, x, None))
