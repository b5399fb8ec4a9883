"""A syntax tree from ast: the type of an expression
=================================================

Parse expressions, label pairs of nodes by their kinship in the tree, and name the types of conditionals.

``(x * i if y < j else x)`` is a float, whatever its condition compares. A model sees the nodes of the syntax tree from
the top down, and names the type of each conditional expression in it: int, float or str. Python gives the answers.
"""

import ast
import random
import re

import torch
from torch import nn

import relgraph as rg

KINSHIP, DISTANCE = rg.TreeRelation(), rg.ClippedDistance(16)

# %%
# Expressions are made up: a rule for each type, whose parts are expressions of the types in braces.

VALUES = {"i": 1, "j": 1, "x": 1.5, "y": 1.5, "s": "a", "t": "b"}
TYPES, KINDS = ("int", "float", "str"), (*VALUES, "Add", "Mult", "Compare", "IfExp")
SAME = ["({0} if {float} < {int} else {0})", "({0} + {0})"]
RULES = {"int": ["({int} * {int})"], "float": ["({int} * {float})", "({float} + {int})"], "str": ["({str} * {int})"]}


def write(kind, depth, rng):
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([name for name, value in VALUES.items() if type(value).__name__ == kind])
    rule = rng.choice([*SAME, *RULES[kind]]).replace("{0}", f"{{{kind}}}")
    return re.sub(r"{(\w+)}", lambda part: write(part[1], depth - 1, rng), rule)


# %%
# :meth:`~relgraph.Graph.from_parents` makes a graph from the parent of each node. A batch packs trees end to end, and
# no pair crosses from one to another. It has both kinds of labels.


def read(text):
    """The tree, the kind of each node, and the type of each conditional; -1 for all other nodes."""
    kinds, parents, types = [], [], []

    def visit(node, parent):
        here, name = len(kinds), type(getattr(node, "op", node)).__name__
        kinds.append(KINDS.index(getattr(node, "id", name)))
        parents.append(parent)
        asked = isinstance(node, ast.IfExp)
        types.append(TYPES.index(type(eval(ast.unparse(node), VALUES)).__name__) if asked else -1)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                visit(child, here)

    visit(ast.parse(text, mode="eval").body, -1)
    return rg.Graph.from_parents(torch.tensor(parents)), torch.tensor(kinds), torch.tensor(types)


def make_batches(count, depth, rng):
    batches = []
    for _ in range(count):
        graphs, kinds, types = zip(*(read(write(rng.choice(TYPES), depth, rng)) for _ in range(16)), strict=True)
        graph = rg.Graph.batch(graphs)
        batches.append(({KINSHIP: KINSHIP(graph), DISTANCE: DISTANCE(graph)}, torch.cat(kinds), torch.cat(types)))
    return batches


class Reader(nn.Module):
    """Three layers of attention over all nodes; a score for each type of each node."""

    def __init__(self, labeler):
        super().__init__()
        layer = rg.RelationEncoderLayer(48, 4, 96, 0.0, norm_first=True, labeler=labeler)
        self.kind, self.encoder = nn.Embedding(len(KINDS), 48), rg.RelationEncoder(layer, 3)
        self.answer = nn.Linear(48, len(TYPES))

    def forward(self, kinds, labels):
        return self.answer(self.encoder(self.kind(kinds), labels=labels))


def train(labeler, batches, seed, steps=200):
    torch.manual_seed(seed)
    model = Reader(labeler)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        labels, kinds, types = batches[step % len(batches)]
        loss = nn.functional.cross_entropy(model(kinds, labels[labeler]), types, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def share_right(model, labeler, batches):
    found = [(model(kinds, labels[labeler]).argmax(-1) == types)[types >= 0] for labels, kinds, types in batches]
    return torch.cat(found).double().mean().item()


if __name__ == "__main__":
    rng = random.Random(0)
    batches, tests, deeper = (make_batches(*size, rng) for size in ((100, 4), (20, 4), (5, 6)))
    for labeler in (DISTANCE, KINSHIP):
        model = train(labeler, batches, seed=0)
        right, right_deeper = (share_right(model, labeler, part) for part in (tests, deeper))
        print(f"{labeler}: {right:.1%} right, in deeper trees {right_deeper:.1%}")

# %%
# With seeds 0 to 2 (edit ``seed=0``), kinship is right for 98.8 % ± 0.5 (deeper trees: 97.7 % ± 0.9), the distance in
# the list of nodes for 91.2 % ± 2.4 (82.9 % ± 4.9; 2026-11, one thread of a busy AMD EPYC). Nothing was tuned. Below
# are the labels of one tree, and the attention that each label gets from conditionals in the model with kinship.

if __name__ == "__main__":
    graph, kinds, _ = read("(x * i if y < j else x)")
    rg.plot.label_matrix(KINSHIP(graph), KINSHIP.names, tokens=[KINDS[kind] for kind in kinds])
    labels, kinds, types = tests[0]
    with rg.record_attention(model) as record:
        model(kinds, labels[KINSHIP])
    mass = torch.stack([call.label_mass[:, types >= 0].mean(1) for (call,) in record.values()])
    rg.plot.label_mass(mass, KINSHIP.names, axes="LHR")
