"""What labels look like
=====================

Words, a tree, a molecule, a database and a grid: one picture of labels for each of eight labelings.

A label says what key j is to query i. In these pictures, rows are queries and columns are keys. A white pair attends
without a label. A hatched pair does not attend.
"""

# sphinx_gallery_thumbnail_number = 4

import torch
from matplotlib import pyplot as plt

import relgraph as rg

# %%
# Sequences
# ---------
# Shaw's labels are the clipped distance j - i. Right of the diagonal, keys come later in the sentence than the query.
# Beyond the clip, all distances on one side share a label.

WORDS = ["She", "gave", "the", "old", "dog", "a", "bone"]
distance = rg.ClippedDistance(2)
rg.plot.label_matrix(distance(len(WORDS)), distance.names, tokens=WORDS)

# %%
# In a window, only near pairs attend, and they keep their labels. This window ends at the query, as a decoder needs.

near = rg.ClippedDistance(3) & rg.Window(8, 0)
rg.plot.label_matrix(near(24), near.names)

# %%
# Trees
# -----
# The sentence as a dependency tree: when a word looks at its head, the label is the name of the relation. When it looks
# at a dependent, the label is the inverse, ⁻¹. Most pairs of words have no relation, and so no label.

HEADS, RELATIONS = [1, -1, 4, 4, 1, 6, 1], ["nsubj", "root", "det", "amod", "iobj", "det", "obj"]
kinds = torch.tensor([rg.labelers.UD_RELATIONS.index(relation) for relation in RELATIONS])
sentence = rg.Graph.from_parents(torch.tensor(HEADS), edge_type=kinds)
syntax = rg.labelers.dependency_relations()
rg.plot.label_matrix(syntax(sentence), syntax.names, tokens=WORDS)

# %%
# These pairs can get their distance as label: ``a | b`` takes the label of b where a has none.

both = syntax | distance
rg.plot.label_matrix(both(sentence), both.names, tokens=WORDS)

# %%
# Kinship in the tree labels all pairs of a sentence. A batch has its sentences end to end, each in a frame. No pair
# crosses from one to another. Cells hold names as long as these if you pass larger axes.

kinship = rg.TreeRelation()
batch = rg.Graph.batch([rg.Graph.from_parents(torch.tensor(parents)) for parents in (HEADS, [1, -1])])
_, ax = plt.subplots(figsize=(8, 6), layout="constrained")
rg.plot.label_matrix(kinship(batch), kinship.names, tokens=[*WORDS, "It", "barked"], ax=ax)

# %%
# Graphs
# ------
# Paracetamol without its hydrogens has eleven atoms and a ring. The label is the number of bonds on the shortest path.

ATOMS = ["C", "C", "O", "N", "C", "C", "C", "C", "O", "C", "C"]
BONDS = [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (7, 9), (9, 10), (10, 4)]
ends = torch.tensor(BONDS).T
molecule = rg.Graph(torch.cat([ends, ends.flip(0)], 1), len(ATOMS))  # each bond in both directions
hops = rg.ShortestPath(4)
rg.plot.label_matrix(hops(molecule), hops.names, tokens=ATOMS)

# %%
# Schemas
# -------
# A question comes with the columns and tables of a database. RAT-SQL's relations say what query and key are (q for a
# word of the question, c for a column, t for a table) and whether they match (EM for an exact match, PM for a partial
# one). Of all 51 labels, the picture has those of words that look at columns and tables.

schema = rg.labelers.Schema(
    ["which", "singer", "has", "the", "highest", "age"],
    [(None, ["*"]), (0, ["singer", "id"]), (0, ["age"]), (1, ["singer", "id"]), (1, ["year"])],
    [["singer"], ["concert"]],
    primary_keys=[1],
    foreign_keys=[(3, 1)],
)
items = [*(" ".join(words) for _, words in schema.columns), *map(" ".join, schema.tables)]
linking = rg.labelers.SchemaRelations()
labels = linking(schema).rows(0, 6).cols(6, 6 + len(items))
_, ax = plt.subplots(figsize=(7, 5), layout="constrained")
rg.plot.label_matrix(labels, linking.names, tokens=(schema.question, items), ax=ax)

# %%
# Grids
# -----
# The cells of a grid, row by row, as an image model sees patches. A product of labelings has a label for each pair of
# labels: here how far down the key is, and how far right. Names such as "row -1×column 0" are long for the cells of a
# picture; an arrow also says where the key is.

grid = rg.labelers.GridRows(1) * rg.labelers.GridColumns(1)
cells = [f"{row}, {column}" for row in range(3) for column in range(4)]
rg.plot.label_matrix(grid(3, 4), list("↖↑↗←·→↙↓↘"), tokens=cells)
