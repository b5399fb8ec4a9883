"""Made-up molecules: the class stands in the kinds of two bonds, and in nothing else."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from made_up_molecules import ATOMS, BONDS, molecule, molecules

GRAPHS = molecules(200, random.Random(0))


def neighbours(graph):
    """By atom, the elements next to it with the kinds of their bonds."""
    elements, kinds = graph.x.argmax(1).tolist(), graph.edge_attr.argmax(1).tolist()
    around = [set() for _ in elements]
    for (source, target), kind in zip(graph.edge_index.T.tolist(), kinds, strict=True):
        around[target].add((ATOMS[elements[source]], BONDS[kind]))
    return around


def test_classes_alternate_and_seeds_repeat():
    assert [int(graph.y) for graph in GRAPHS] == [0, 1] * 100
    for first, second in zip(molecules(6, random.Random(3)), molecules(6, random.Random(3)), strict=True):
        assert all(torch.equal(first[key], second[key]) for key in first.keys())  # noqa: SIM118


def test_the_class_is_the_planted_group():
    groups = [{("O", "single"), ("N", "double")}, {("O", "double"), ("N", "single")}]
    for graph in GRAPHS:
        found = [sum(group <= around for around in neighbours(graph)) for group in groups]
        assert found[int(graph.y)] == 1
        assert found[1 - int(graph.y)] == 0


def test_without_kinds_of_bonds_both_classes_are_alike():
    for seed in range(20):
        first, second = (molecule(kind, random.Random(seed)) for kind in (0, 1))
        assert torch.equal(first.x, second.x)
        assert torch.equal(first.edge_index, second.edge_index)
        kinds = [Counter(graph.edge_attr.argmax(1).tolist()) for graph in (first, second)]
        assert kinds[0] == kinds[1]


def test_bonds_go_both_ways_and_no_atom_has_too_many():
    valence = {"C": 4, "N": 3, "O": 2}
    for graph in GRAPHS:
        source, target = graph.edge_index
        there = {
            (s, t): k
            for s, t, k in zip(source.tolist(), target.tolist(), graph.edge_attr.argmax(1).tolist(), strict=True)
        }
        assert len(there) == graph.num_edges
        assert all(there[t, s] == kind for (s, t), kind in there.items())
        used = torch.zeros(graph.num_nodes).index_add(0, target, 1.0 + graph.edge_attr.argmax(1))
        assert all(used[n] <= valence[ATOMS[element]] for n, element in enumerate(graph.x.argmax(1)))
