"""Made-up molecules as PyG data; the kinds of bonds in one group of atoms determine the class.

A skeleton of carbon, sometimes with a ring, carries one of two groups, depending on the class. The group brings its own
carbon:

    class 1    O=C–N    as in an amide: oxygen by a double bond, nitrogen by a single one
    class 0    O–C=N    the same atoms, with the bonds swapped

Both classes get the same decoys: single atoms of oxygen or nitrogen, by a single or a double bond. So a model that does
not see the kinds of bonds sees the same graphs in both classes, and counts of atoms or bonds are equal.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain

import torch
from torch.nn.functional import one_hot
from torch_geometric.data import Data

ATOMS, BONDS = ("C", "N", "O"), ("single", "double")
DECOYS = (("O", "single"), ("O", "double"), ("N", "single"), ("N", "double"))
"""Each decoy is an atom, and its bond to the skeleton."""

Bond = tuple[int, int, str]


def molecules(count: int, rng: random.Random) -> list[Data]:
    """This many molecules, every other one of class 1."""
    return [molecule(number % 2, rng) for number in range(count)]


def molecule(kind: int, rng: random.Random) -> Data:
    """A molecule of class ``kind``: atoms and bonds one-hot, each bond in both directions."""
    bonds = _skeleton(rng)
    degree = Counter(chain.from_iterable(bond[:2] for bond in bonds))
    atoms = ["C"] * len(degree)
    free = rng.sample([place for place, bound in degree.items() if bound <= 2], rng.randint(2, 4))

    def attach(place: int, atom: str, bond: str) -> int:
        bonds.append((place, len(atoms), bond))
        atoms.append(atom)
        return len(atoms) - 1

    center = attach(free.pop(), "C", "single")
    attach(center, "O", BONDS[kind])
    attach(center, "N", BONDS[1 - kind])
    for place in free:
        attach(place, *rng.choice(DECOYS))
    return _data(atoms, bonds, kind)


def _skeleton(rng: random.Random) -> list[Bond]:
    """A tree of six to nine carbons with short branches; half of the molecules also have a ring of five or six."""
    bonds = [(0, 1, "single")]
    for new in range(2, rng.randint(6, 9)):
        bonds.append((new - (2 if rng.random() < 0.2 else 1), new, "single"))
    if rng.random() < 0.5:
        bonds.append((0, 5, "single"))
    return bonds


def _data(atoms: list[str], bonds: list[Bond], kind: int) -> Data:
    there = torch.tensor([bond[:2] for bond in bonds]).T
    kinds = torch.tensor([BONDS.index(bond) for *_, bond in bonds])
    return Data(
        x=one_hot(torch.tensor([ATOMS.index(atom) for atom in atoms]), len(ATOMS)).float(),
        edge_index=torch.cat([there, there.flip(0)], 1),
        edge_attr=one_hot(kinds.repeat(2), len(BONDS)).float(),
        y=torch.tensor([kind]),
    )
