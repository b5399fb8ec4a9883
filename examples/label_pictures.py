"""What labels look like, and what is learned about them
=====================================================

Nine labelings as matrices, and what three small models learn about the labels that they get.

A label says what key j is to query i. The first half draws the label matrices. The second half trains the models, a few
seconds each, and looks at what their tables and their attention have become.

Each picture is one call of ``relgraph.plot``; the script computes the numbers behind it.

.. code-block:: sh

    python examples/label_pictures.py

draws the same pictures without a screen in about half a minute and writes them to ``label-pictures-out/`` one by one
(``--out`` names another folder).
"""

# sphinx_gallery_thumbnail_number = 5

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import relgraph as rg

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]


parser = argparse.ArgumentParser(description="Pictures of labels, of tables and of attention.")
parser.add_argument("--out", type=Path, default=Path("label-pictures-out"), help="folder for the pictures")
parser.add_argument("--quick", action="store_true", help="changes nothing: the example is always short")
FOLDER = parser.parse_args().out
FOLDER.mkdir(parents=True, exist_ok=True)


def named(ax: Axes, name: str, title: str) -> None:
    """Set the title of a picture and write it to a file of that name."""
    ax.set_title(title, fontsize=10, family="monospace")
    ax.figure.savefig(FOLDER / f"{name}.png", dpi=120)
    plt.close(ax.figure)


# %%
# Sequences
# ---------
# Shaw's labels are the clipped distance j - i. Rows are queries and columns are keys: right of the diagonal, keys come
# later in the sequence than the query. Beyond the clip, all distances on one side share a label.

clipped = rg.ClippedDistance(2)
named(rg.plot.label_matrix(clipped(7), clipped.names, tokens=WORDS), "clipped-distance", repr(clipped))

# %%
# T5's buckets hold one distance each near the diagonal, and more and more distances farther away.

buckets = rg.BucketedDistance()
named(rg.plot.label_matrix(buckets(150), buckets.names), "buckets", "BucketedDistance()")

# %%
# A window lets only near pairs attend. It keeps the labels of these pairs. The picture hatches the far pairs, which do
# not attend. A white pair would attend without a label.

near = rg.ClippedDistance(3) & rg.Window(8, 0)
named(rg.plot.label_matrix(near(24), near.names), "window", repr(near))

# %%
# Trees
# -----
# This is the same sentence as a dependency tree. When a word looks at its head, the label is the relation's name; when
# it looks at a dependent, the label is the inverse relation, ⁻¹. Most pairs have no edge and attend without a label.

heads, relations = [1, -1, 4, 4, 1, 6, 1], ["nsubj", "root", "det", "amod", "iobj", "det", "obj"]
kinds = torch.tensor([rg.labelers.UD_RELATIONS.index(relation) for relation in relations])
sentence = rg.Graph.from_parents(torch.tensor(heads), edge_type=kinds)
syntax = rg.labelers.dependency_relations()
named(rg.plot.label_matrix(syntax(sentence), syntax.names, tokens=WORDS), "dependencies", "dependency_relations()")

# %%
# Pairs without a relation in the tree can get their distance as label: ``a | b`` takes b's label where a has none.

both = syntax | rg.ClippedDistance(2)
named(rg.plot.label_matrix(both(sentence), both.names, tokens=WORDS), "priority", "tree | ClippedDistance(2)")

# %%
# Kinship in the tree labels every pair. Two sentences packed end to end do not attend to each other; each has a frame.

kinship = rg.TreeRelation()
pair = rg.Graph.batch([rg.Graph.from_parents(torch.tensor(parents)) for parents in (heads, [1, -1, 4, 4, 1])])
ax = rg.plot.label_matrix(kinship(pair), kinship.names, tokens=[*WORDS, "It", "wagged", "its", "long", "tail"])
named(ax, "tree", "TreeRelation()")

# %%
# Graphs
# ------
# This is paracetamol without its hydrogens: eleven atoms and a ring. Labels are lengths of shortest paths.

ATOMS = ["C", "C", "O", "N", "C", "C", "C", "C", "O", "C", "C"]
BONDS = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (7, 9), (9, 10), (10, 4)]


def undirected(edges: list[tuple[int, int]], nodes: int) -> rg.Graph:
    """A graph with every edge in both directions."""
    ends = torch.tensor(edges).T
    return rg.Graph(torch.cat([ends, ends.flip(0)], 1), nodes)


molecule = undirected(BONDS, len(ATOMS))
hops = rg.ShortestPath(4)
named(rg.plot.label_matrix(hops(molecule), hops.names, tokens=ATOMS), "shortest-path", "ShortestPath(4)")

# %%
# Schemas
# -------
# A question comes with the tables and columns of a database. RAT-SQL's relations distinguish words, columns and tables
# and say which of them match. There are 51 labels; only those in the picture get a colour.

schema = rg.labelers.Schema(
    ["which", "singer", "has", "the", "highest", "age"],
    [(None, ["*"]), (0, ["singer", "id"]), (0, ["age"]), (1, ["singer", "id"]), (1, ["year"])],
    [["singer"], ["concert"]],
    primary_keys=[1],
    foreign_keys=[(3, 1)],
)
items = [*schema.question, *(" ".join(words) for _, words in schema.columns), *map(" ".join, schema.tables)]
linking = rg.labelers.SchemaRelations()
named(rg.plot.label_matrix(linking(schema), linking.names, tokens=items), "schema", "SchemaRelations()")

# %%
# Grids, products and sums
# ------------------------
# On a grid, a label combines two distances. ``GridRows(1) * GridColumns(1)`` is one table of nine labels, the same as
# ``Grid(1)``. Their sum is two tables of three labels each, with one picture per table.

grid = rg.labelers.GridRows(1) * rg.labelers.GridColumns(1)
named(rg.plot.label_matrix(grid(3, 4), grid.names), "product", "GridRows(1) * GridColumns(1)")
parts = rg.labelers.GridRows(1) + rg.labelers.GridColumns(1)
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for part, ax in enumerate(axes):
    named(
        rg.plot.label_matrix(parts(3, 4), parts.names, part=part, ax=ax),
        "sum",
        f"GridRows(1) + GridColumns(1), part {part}",
    )

# %%
# Trained tables
# --------------
# The model is one layer of relation attention with two heads, and gives an answer at every position. It sees no
# positions and no graph, only labels.

SYMBOLS, WIDTH, HEADS, STEPS = 12, 32, 2, 250
Batch = tuple[Tensor, rg.Labels, Tensor]  # symbols [T], labels, answers [T]; -100 means no question


class Reader(nn.Module):
    """Symbols, one layer of relation attention, answers."""

    def __init__(self, labeler: rg.Labeler, answers: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.attention = rg.RelationAttention(WIDTH, HEADS, labeler=labeler)
        self.answers = nn.Linear(WIDTH, answers)

    def forward(self, symbols: Tensor, labels: rg.Labels) -> Tensor:
        return self.answers(self.attention(self.symbols(symbols), labels=labels))

    @torch.no_grad()
    def look(self, symbols: Tensor, labels: rg.Labels) -> tuple[Tensor, Tensor]:
        """Weights ``[H, N, N]`` and label mass ``[H, N, R]``."""
        x = self.symbols(symbols)
        return self.attention(x, labels=labels, need_weights=True, need_label_mass=True)[1:]


def train(labeler: rg.Labeler, answers: int, make: Callable[[random.Random], Batch], title: str) -> Reader:
    """Train a reader for a few seconds; print how often it is right on inputs that it has not seen."""
    torch.manual_seed(0)
    rng, reader = random.Random(0), Reader(labeler, answers)
    optimizer = torch.optim.Adam(reader.parameters(), lr=1e-2)
    for _ in tqdm(range(STEPS), title, disable=None):
        symbols, labels, wanted = make(rng)
        optimizer.zero_grad()
        cross_entropy(reader(symbols, labels), wanted).backward()
        optimizer.step()
    symbols, labels, wanted = make(random.Random("test"))
    right = (reader(symbols, labels).argmax(-1) == wanted)[wanted >= 0].double().mean().item()
    print(f"{title}: {100 * right:.1f} % right")
    return reader


# %%
# The first task is to fetch a symbol: at an even symbol the answer is the symbol three places before, at an odd symbol
# the one two places after. The symbol decides where to look, and the label says which key is there.

LENGTH, COUNT = 20, 24
distance = rg.ClippedDistance(6)


def sequences(rng: random.Random) -> Batch:
    """Random sequences, packed end to end."""
    symbols = torch.tensor([[rng.randrange(SYMBOLS) for _ in range(LENGTH)] for _ in range(COUNT)])
    before, after = symbols.roll(3, 1), symbols.roll(-2, 1)
    before[:, :3], after[:, -2:] = -100, -100
    wanted = torch.where(symbols % 2 == 0, before, after)
    labels = distance(COUNT * LENGTH, ptr=torch.arange(0, COUNT * LENGTH + 1, LENGTH))
    return symbols.flatten(), labels, wanted.flatten()


fetcher = train(distance, SYMBOLS, sequences, "fetch a symbol")

# %%
# The key table has one row per distance. The rows of the two useful distances have become the longest; all rows start
# with length about 1.

tables = fetcher.attention.tables
named(rg.plot.table_norms(tables.key), "norms", "key table: length of each row")

# %%
# All other rows have become similar. The two useful rows differ from them, and from each other.

named(rg.plot.table_similarity(tables.key), "similarity", "key table: cosines of its rows")

# %%
# The mass of a label is the attention that it receives. The picture shows it per head, averaged over many queries:

symbols, labels, wanted = sequences(random.Random("look"))
_, mass = fetcher.look(symbols, labels)
named(rg.plot.label_mass(mass, distance.names, axes="HNR"), "mass", "attention by label and head")

# %%
# Attention over tokens
# ---------------------
# The picture shows all pairs of one sequence: rows with even symbols look three to the left, the others two to the
# right. Near the ends, where there is no question, attention goes anywhere.

one = symbols[:LENGTH]
weights, _ = fetcher.look(one, distance(LENGTH))
tokens = [str(symbol) for symbol in one.tolist()]
named(rg.plot.attention_tokens(weights, tokens), "attention-tokens", "attention, mean of heads")

# %%
# The same picture for one query, number 9:

named(rg.plot.attention_tokens(weights, tokens, query=9), "attention-query", "attention of position 9")

# %%
# Attention over a tree
# ---------------------
# In random trees, the model must name the symbol of each node's grandparent. Labels count the steps up to the lowest
# common ancestor and down from there; the grandparent is ``↑2↓0``.

steps = rg.UpDown(3)


def trees(rng: random.Random) -> Batch:
    """Random trees of ten nodes, packed."""
    grown = []
    for _ in range(COUNT):
        parents = [-1] + [rng.randrange(max(0, node - 3), node) for node in range(1, 10)]
        grown.append(rg.Graph.from_parents(torch.tensor(parents)))
    batch = rg.Graph.batch(grown)
    symbols = torch.tensor([rng.randrange(SYMBOLS) for _ in range(batch.num_nodes)])
    above = batch.parents(forest=True)
    grandparent = torch.where(above >= 0, above[above], -1)
    return symbols, steps(batch), torch.where(grandparent >= 0, symbols[grandparent], -100)


climber = train(steps, SYMBOLS, trees, "name the grandparent")

# %%
# The next picture shows the tree of ``x = a + b * f(c)``, and where the node ``c`` looks:

NODES = ["=", "x", "+", "a", "*", "b", "f()", "c"]
expression = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2, 2, 4, 4, 6]))
weights, _ = climber.look(torch.arange(len(NODES)), steps(expression))
ax = rg.plot.attention_tree(weights, expression, query=7, node_names=NODES)
named(ax, "attention-tree", "where c looks")

# %%
# Attention over a graph
# ----------------------
# In random graphs with a ring, the model must say for each atom whether a nitrogen is exactly two bonds away.

NITROGEN = 1
SYMBOL_OF = {"C": 0, "N": NITROGEN, "O": 2}


def molecules(rng: random.Random) -> Batch:
    """Random graphs of eleven atoms with one ring, packed."""
    grown = []
    for _ in range(COUNT):
        edges = [(rng.randrange(max(0, node - 3), node), node) for node in range(1, 11)]
        edges += rng.sample(sorted({(i, j) for i in range(5) for j in range(6, 11)} - set(edges)), 1)
        grown.append(undirected(edges, 11))
    batch = rg.Graph.batch(grown)
    symbols = torch.tensor([rng.choice((0, 0, 0, NITROGEN, 2)) for _ in range(batch.num_nodes)])
    query, key = batch.pairs()
    found = (rg.labelers.shortest_path_lengths(batch) == 2) & (symbols[key] == NITROGEN)
    wanted = torch.zeros(batch.num_nodes, dtype=torch.int64).index_put((query[found],), torch.tensor(1))
    return symbols, hops(batch), wanted


chemist = train(hops, 2, molecules, "find nitrogen two bonds away")

# %%
# Paracetamol was not among the training graphs. Atom 5 looks at the nitrogen, which is two bonds away. Arrows have the
# colour of their label.

symbols = torch.tensor([SYMBOL_OF[atom] for atom in ATOMS])
weights, mass = chemist.look(symbols, hops(molecule))
atoms = [f"{atom}{number}" for number, atom in enumerate(ATOMS)]
ax = rg.plot.attention_graph(weights, molecule, query=5, node_names=atoms, labels=hops(molecule), names=hops.names)
named(ax, "attention-graph", "where atom 5 looks")

# %%
# Without a query, shades show the attention that each atom receives, and arrows follow the bonds.

named(rg.plot.attention_graph(weights, molecule, node_names=atoms), "attention-received", "attention received")

# %%
# The script has also written every picture to a file.

print(f"{len(list(FOLDER.glob('*.png')))} pictures in {FOLDER}")
