"""The kinship example: its families answer as matrices do, and a^K alone tells nobody apart."""

import random
from itertools import product

import kinship
import pytest
import torch
from kinship import Batch, Family, Kin, compose, inverse

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
def test_a_family_answers_as_the_links_on_the_way_from_ego_do(links):
    """Walk over the edges with matrices, in both directions, until everybody is reached."""
    for seed in range(5):
        family = Family.grow(links, random.Random(seed))
        count = len(family.male)
        reached, distance, front = {0: torch.eye(2).long()}, {0: 0}, [0]
        ways = [(query, key, matrix(kinship.LINKS[link])) for key, query, link in family.facts]
        ways += [(key, query, matrix(kinship.LINKS[link]).T) for key, query, link in family.facts]
        while front:
            here = front.pop()
            for start, end, step in ways:
                if start == here and end not in reached:
                    reached[end], distance[end] = reached[here] @ step, distance[here] + 1
                    front.append(end)
        assert len(family.facts) == count - 1 == 3 * links + 4
        assert [distance[person] for person in range(count)] == family.away
        assert all(torch.equal(reached[person], matrix(family.section[person])) for person in range(count))
        assert links in family.away


@pytest.mark.parametrize("name", kinship.VARIANTS)
def test_without_a_value_table_all_persons_are_one(name):
    """The proof of the docstring, on a model whose tables are far from zero."""
    model = Kin(kinship.VARIANTS[name]).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    scores = model(Batch.make(4, 3, random.Random(0)), 6, quiet=2)[-1]
    spread = (scores - scores[:1]).abs().max().item()
    assert (spread < 1e-9) == ("value" not in kinship.VARIANTS[name])
