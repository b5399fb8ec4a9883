"""Tests the kinship example: its families agree with matrices, and its rows see what their page says."""

import random
from itertools import product

import pytest
import torch

pytest.importorskip("torch_geometric")

import kinship
from kinship import Batch, Family, Kin, Run, compose, inverse

TURN, FLIP = torch.tensor([[0, -1], [1, 0]]), torch.tensor([[1, 0], [0, -1]])
SECTIONS = list(product(range(4), (0, 1)))


def matrix(section):
    """The square's symmetry as a matrix."""
    turns, flip = section
    return torch.linalg.multi_dot([torch.eye(2).long(), *[TURN] * turns, *[FLIP] * flip, torch.eye(2).long()])


def test_sections_are_the_symmetries_of_a_square_and_parents_agree():
    assert len({tuple(matrix(s).flatten().tolist()) for s in SECTIONS}) == kinship.CLASSES
    for a, b in product(SECTIONS, SECTIONS):
        assert torch.equal(matrix(compose(a, b)), matrix(a) @ matrix(b))
    for a in SECTIONS:
        assert compose(a, inverse(a)) == compose(inverse(a), a) == (0, 0)
    father, mother, spouse = kinship.LINKS.values()
    assert compose(father, spouse) == mother
    assert compose(mother, spouse) == father


@pytest.mark.parametrize("links", [1, 10])
def test_a_family_answers_as_the_links_on_every_way_from_ego_do(links):
    """Walk along the edges in both directions, nearest first, and multiply matrices, until all relatives are done."""
    linked_back = 0
    for seed in range(5):
        family = Family.grow(links, random.Random(seed))
        relatives = len(family.male) - kinship.STRANGERS
        assert relatives == 2 * links + 5
        reached, distance, front = {0: torch.eye(2).long()}, {0: 0}, [0]
        ways = [(query, key, matrix(kinship.LINKS[link])) for key, query, link in family.facts]
        ways += [(key, query, matrix(kinship.LINKS[link]).T) for key, query, link in family.facts]
        while front:
            here = front.pop(0)
            for start, end, step in ways:
                if start == here and end not in reached:
                    reached[end], distance[end] = reached[here] @ step, distance[here] + 1
                    front.append(end)
                elif start == here:
                    assert torch.equal(reached[end], reached[here] @ step)
        assert [distance.get(person, kinship.UNRELATED) for person in range(len(family.male))] == family.away
        assert sorted(reached) == list(range(relatives))
        assert all(torch.equal(found, matrix(family.section[person])) for person, found in reached.items())
        assert links in family.away
        linked_back += len(family.facts) - (relatives - 1) - (kinship.STRANGERS - 1)
    assert linked_back >= 5


@pytest.mark.parametrize("name", kinship.VARIANTS)
def test_persons_look_along_facts_or_at_their_whole_family(name):
    """The inputs that an answer depends on after one step, from gradients."""
    torch.manual_seed(0)
    row, batch = kinship.VARIANTS[name], Batch.make(2, 2, random.Random(0))
    model = Kin(row).double()
    batch.names.requires_grad_()
    scores = model(Batch(batch.packed, batch.edges, batch.pairs, batch.names.double(), batch.away, batch.kin), 1)[-1]
    _, attend = batch.edges.to_dense()
    for person in range(batch.away.shape[1]):
        (seen,) = torch.autograd.grad(scores[:, person].square().sum(), batch.names, retain_graph=True)
        expected = torch.ones_like(attend[:, person]) if row.pairs else attend[:, person]
        assert torch.equal(seen.abs().sum(-1) > 1e-12, expected)


def test_intervals_are_students():
    """Five numbers with mean 3 and standard deviation sqrt(2.5): 2.776 · sqrt(2.5 / 5) is 1.963."""
    assert kinship.with_interval([0.01, 0.02, 0.03, 0.04, 0.05]) == "3.0 ± 2.0"
    assert kinship.with_interval([0.25], "+") == "+25.0"
    runs = [Run("maps, tables", seed, dict.fromkeys(kinship.TESTED, 0.5 + seed / 10), 1.0, []) for seed in (0, 1)]
    runs += [Run("RGATConv", seed, dict.fromkeys(kinship.TESTED, 0.25 + seed / 10), 1.0, []) for seed in (0, 1)]
    assert kinship.report(runs).splitlines()[-1] == "5–10 links, maps, tables less RGATConv: +25.0 ± 0.0"
