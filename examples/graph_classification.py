"""Molecules: attention along bonds and over all pairs
===================================================

PyG's TransformerConv and GPSConv and relgraph's layers tell mutagenic molecules from others, on one budget.

.. image:: /gallery/images/graph_classification.png
   :alt: ROC-AUC on Mutagenicity in the long run, by row

The results are those of real molecules. To read no files, this page makes up molecules whose class is planted in the
kinds of two bonds: O=C–N or O–C=N. Attention follows bonds, whose kinds are the labels.
"""

import random
from collections import Counter

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

import relgraph as rg

ALONG_BONDS = rg.pyg.AddRelationLabels(rg.EdgeType(["single", "double"]), edge_type="edge_attr")
WIDTH, HEADS = 48, 4


def molecule(kind, rng):
    """A molecule of class 0 or 1: a skeleton of carbon, the planted group, and single atoms of the same elements."""
    bonds = [(0, 1, 0)] + [(new - (2 if rng.random() < 0.2 else 1), new, 0) for new in range(2, rng.randint(6, 9))]
    if rng.random() < 0.5:
        bonds.append((0, 5, 0))  # a ring
    degree = Counter(atom for one, other, _ in bonds for atom in (one, other))
    atoms = ["C"] * len(degree)
    free = rng.sample([atom for atom, bound in degree.items() if bound <= 2], rng.randint(2, 4))
    group = [(free.pop(), "C", 0), (len(atoms), "O", kind), (len(atoms), "N", 1 - kind)]
    others = ((place, *rng.choice([("O", 0), ("O", 1), ("N", 0), ("N", 1)])) for place in free)
    for place, atom, bond in [*group, *others]:
        bonds.append((place, len(atoms), bond))
        atoms.append(atom)
    one, other, kinds = torch.tensor(bonds).T
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    x = one_hot(torch.tensor(["CNO".index(atom) for atom in atoms]), 3).float()
    return Data(x=x, edge_index=edges, edge_attr=one_hot(kinds.repeat(2), 2).float(), y=torch.tensor([kind]))


class Block(nn.Module):
    """Attention, then a feed-forward network, each with a norm before it and a residual sum."""

    def __init__(self, attention, hidden=144):
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, _, labels):
        x = x + self.drop(self.attention(self.norms[0](x), labels))
        return x + self.drop(self.feed_forward(self.norms[1](x)))


class Classifier(nn.Module):
    """Three layers, the mean over atoms, and one number: above 0 for class 1; ``walks`` are features of atoms."""

    def __init__(self, make_layer, labels, atoms, walks=0):
        super().__init__()
        self.labels, self.atom, self.walks = labels, nn.Linear(atoms, WIDTH), nn.Linear(walks, WIDTH) if walks else None
        self.layers, self.norm = nn.ModuleList(make_layer() for _ in range(3)), nn.LayerNorm(WIDTH)
        self.answer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, batch):
        labels = rg.pyg.relation_labels(batch, self.labels) if self.labels else None
        x = self.atom(batch.x) + (self.walks(batch.walks) if self.walks else 0)
        for layer in self.layers:
            x = layer(x, batch, labels)
        return self.answer(global_mean_pool(self.norm(x), batch.batch, batch.num_graphs))[:, 0]


def roc_auc(scores, truth):
    """The probability that a graph of class 1 scores above one of class 0; a tie counts half."""
    high, low = scores[truth == 1], scores[truth == 0].sort().values
    below, not_above = (torch.searchsorted(low, high, right=right) for right in (False, True))
    return ((below + not_above).double().mean() / (2 * len(low))).item()


if __name__ == "__main__":
    rng = random.Random(0)
    graphs = [ALONG_BONDS(molecule(number % 2, rng)) for number in range(600)]
    torch.manual_seed(0)
    model = Classifier(lambda: Block(rg.pyg.RelationConv(WIDTH, 12, HEADS, num_relations=2)), ALONG_BONDS, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(epochs := 10):
        for batch in DataLoader(graphs[:480], 32, shuffle=True):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(batch), batch.y.float()).backward()
            optimizer.step()
    (batch,) = DataLoader(graphs[480:], 120)
    print(f"ROC-AUC {roc_auc(model.eval()(batch).detach(), batch.y):.3f} on 120 unseen made-up molecules")
    pairs = rg.EdgeType(["single", "double"], attend="all") | rg.ShortestPath(8)  # the bond, or the length of the path
    rg.plot.label_matrix(pairs(rg.pyg.from_data(graphs[1], edge_type="edge_attr")), pairs.names)

# %%
# **What came out.** ``python examples/run.py graph_classification --data FOLDER`` trains ten epochs on Mutagenicity:
# three seeds (the last three rows with ``--seeds 5``; 2026-11, a thread of a busy AMD EPYC). ``walks``: with
# random-walk features of atoms. ``GINE & relgraph pairs`` is GPSConv's layer with ``bonds | paths`` on its pairs::
#
#     row                          test ROC-AUC  test accuracy  parameters  CPU seconds
#     PyG TransformerConv            83.1 ± 1.1     75.6 ± 0.9      74,305           13
#     PyG GPSConv                    83.3 ± 3.2     75.4 ± 3.5      74,881           38
#     relgraph bonds                 83.2 ± 3.1     76.4 ± 4.5      74,737           19
#     relgraph bonds | paths         78.3 ± 2.1     69.5 ± 2.1      74,809           43
#     relgraph paths                 78.3 ± 1.4     70.5 ± 1.2      74,593           41
#     relgraph no labels             74.1 ± 0.7     68.9 ± 2.0      73,873           30
#     PyG TransformerConv, walks     85.4 ± 1.8     77.5 ± 2.0      75,121           11
#     PyG GPSConv, walks             86.2 ± 1.9     79.2 ± 2.7      75,697           64
#     relgraph bonds, walks          83.9 ± 1.8     76.3 ± 0.9      75,553           35
#     GINE & relgraph pairs, walks   85.4 ± 2.2     77.2 ± 3.3      76,633           86
#
# Along bonds, with the same input, all tie. ``PyG GPSConv, walks`` leads ``bonds, walks`` by 2.3 (1.3 to 3.2); labels
# on the pairs of its layer tie (-0.7, -2.5 to +1.0). No row was tuned; more epochs may change the order.
