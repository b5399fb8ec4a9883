"""Tests the kinship example: its families agree with matrices, and its rows see what their page says."""

import random
from itertools import product

import pytest
import torch

pytest.importorskip("torch_geometric")

import kinship as page
from experiments import kinship as example
from experiments.kinship import Run
from kinship import BACK, LINKS, compose

TURN, FLIP = torch.tensor([[0, -1], [1, 0]]), torch.tensor([[1, 0], [0, -1]])
SECTIONS = list(product(range(4), (0, 1)))


def matrix(section):
    """The square's symmetry as a matrix."""
    turns, flip = section
    return torch.linalg.multi_dot([torch.eye(2).long(), *[TURN] * turns, *[FLIP] * flip, torch.eye(2).long()])


def test_sections_are_the_symmetries_of_a_square_and_parents_agree():
    assert len({tuple(matrix(s).flatten().tolist()) for s in SECTIONS}) == page.CLASSES
    for a, b in product(SECTIONS, SECTIONS):
        assert torch.equal(matrix(compose(a, b)), matrix(a) @ matrix(b))
    for there, back in zip(LINKS, BACK, strict=True):
        assert compose(there, back) == compose(back, there) == (0, 0)
    father, mother, spouse = LINKS
    assert compose(father, spouse) == mother
    assert compose(mother, spouse) == father


@pytest.mark.parametrize("links", [1, 10])
def test_a_family_answers_as_the_links_on_every_way_from_ego_do(links):
    """Walk along the edges in both directions, nearest first, and multiply matrices, until all relatives are done."""
    linked_back = 0
    for seed in range(5):
        graph, section, away = page.family(links, random.Random(seed))
        people = 2 * links + 5
        reached, distance, front = {0: torch.eye(2).long()}, {0: 0}, [0]
        facts = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
        ways = [(query, key, matrix(LINKS[link])) for key, query, link in facts]
        ways += [(key, query, matrix(LINKS[link]).T) for key, query, link in facts]
        while front:
            here = front.pop(0)
            for start, end, step in ways:
                if start == here and end not in reached:
                    reached[end], distance[end] = reached[here] @ step, distance[here] + 1
                    front.append(end)
                elif start == here:
                    assert torch.equal(reached[end], reached[here] @ step)
        assert [distance[person] for person in range(people)] == away
        assert all(torch.equal(found, matrix(section[person])) for person, found in reached.items())
        assert links in away
        linked_back += len(facts) - (people - 1)
    assert linked_back >= 3


@pytest.mark.parametrize("name", [name for name in example.ROWS if not name.endswith("longer")])
def test_persons_look_along_facts_or_at_their_whole_family(name):
    """The inputs that an answer depends on after one step, from gradients; and all models are about equally large."""
    torch.manual_seed(0)
    row, (graph, names, _, away) = example.ROWS[name], page.families(2, 2, random.Random(0))
    model, names = example.model_of(row).double(), names.double().requires_grad_()
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(27_560, abs=60)
    scores = model(names, row.labels(graph), 1)[-1]
    _, attend = example.edges(graph).to_dense()
    for person in range(away.shape[1]):
        (seen,) = torch.autograd.grad(scores[:, person].square().sum(), names, retain_graph=True)
        expected = torch.ones_like(attend[:, person]) if name.startswith("pairs") else attend[:, person]
        assert torch.equal(seen.abs().sum(-1) > 1e-12, expected)


def test_a_lead_is_that_of_each_seed():
    runs = [Run("maps, tables", seed, dict.fromkeys(range(2, 11), 0.5 + seed / 10), 1, 1.0) for seed in (0, 1)]
    runs += [Run("RGATConv", seed, dict.fromkeys(range(2, 11), 0.25 + seed / 10), 1, 1.0) for seed in (0, 1)]
    last = example.report(runs).splitlines()[-1]
    assert last == "5–10 links, maps, tables against RGATConv: +25.0 (+25.0 to +25.0)"
