"""What a layer learns about its labels
=====================================

Train a layer for seconds, then look at its tables and its attention: which labels it uses, where it looks.

The model sees symbols and labels, and no positions. A label is the distance in a sequence, and later a path in a tree.
"""

# sphinx_gallery_thumbnail_number = 4

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import relgraph as rg

DISTANCE, PATH = rg.ClippedDistance(6), rg.UpDown(3)
SYMBOLS, WIDTH, HEADS = 12, 32, 2


class Reader(nn.Module):
    """One layer of attention between symbols; a score for each symbol at each position."""

    def __init__(self, labeler):
        super().__init__()
        self.symbol, self.answer = nn.Embedding(SYMBOLS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        self.attention = rg.RelationAttention(WIDTH, HEADS, labeler=labeler)

    def forward(self, symbols, graph=None):
        return self.answer(self.attention(self.symbol(symbols), labels=graph))


def train(labeler, make_batch, steps=250):
    torch.manual_seed(0)
    model = Reader(labeler)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        given, wanted = make_batch()
        loss = cross_entropy(model(*given).flatten(0, -2), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    given, wanted = make_batch()
    print(f"{labeler}: {(model(*given).argmax(-1) == wanted)[wanted >= 0].double().mean():.1%} right in new inputs")
    return model


# %%
# The first task is to fetch a symbol. At an even symbol the answer is the symbol three places before, at an odd symbol
# the one two places after. So the symbol decides where to look, and the label says which key is there.

NO_QUESTION = -100  # cross_entropy ignores it


def sequences():
    symbols = torch.randint(SYMBOLS, (24, 20))
    before, after = symbols.roll(3, 1), symbols.roll(-2, 1)
    before[:, :3], after[:, -2:] = NO_QUESTION, NO_QUESTION
    return (symbols,), torch.where(symbols % 2 == 0, before, after)


fetcher = train(DISTANCE, sequences)

# %%
# The key table has a row for each distance. The rows of the two useful distances, -3 and 2, are now the longest.
# Lengths are a weak sign: with another seed, an unused row can be as long.

rg.plot.table_norms(fetcher.attention.tables.key)

# %%
# The mass of a label is the attention that it receives, here by head, as the mean over many queries.

(symbols,), _ = sequences()
with torch.no_grad(), rg.record_attention(fetcher, weights=True) as record:
    fetcher(symbols)
rg.plot.label_mass(record, DISTANCE.names)

# %%
# All pairs of one sequence: at even symbols the model looks three places to the left, at odd symbols two to the right.
# Where there is no question, at the ends, it looks anywhere.

(call,) = record["attention"]
rg.plot.attention_tokens(call.weights[0], symbols[0].tolist())

# %%
# The second task is to name the symbol of a node's grandparent in a random tree. A label counts the steps up to the
# lowest common ancestor, and the steps down from there: the grandparent is ``↑2↓0``.


def trees():
    parents = [[-1, *(node - 1 - int(torch.randint(min(node, 3), ())) for node in range(1, 10))] for _ in range(24)]
    graph = rg.Graph.batch([rg.Graph.from_parents(torch.tensor(tree)) for tree in parents])
    symbols, parent = torch.randint(SYMBOLS, (graph.num_nodes,)), graph.parents(forest=True)
    grandparent = torch.where(parent >= 0, parent[parent], -1)
    return (symbols, graph), torch.where(grandparent >= 0, symbols[grandparent], NO_QUESTION)


climber = train(PATH, trees)

# %%
# In the tree of ``x = a + b * f(c)``, the node ``c`` looks at its grandparent, the product.

NODES = ["=", "x", "+", "a", "*", "b", "f()", "c"]
expression = rg.Graph.from_parents(torch.tensor([-1, 0, 0, 2, 2, 4, 4, 6]))
with torch.no_grad(), rg.record_attention(climber, weights=True) as record:
    climber(torch.arange(len(NODES)), expression)
(call,) = record["attention"]
rg.plot.attention_graph(call.weights, expression, query=7, pos="tree", node_names=NODES)
