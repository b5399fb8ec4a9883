"""Schema linking: the column that a question asks for
===================================================

A small model finds the column that a question asks for, with and without RAT-SQL's relations.

.. image:: /gallery/images/schema_linking.png
   :alt: Columns found in the long run, by row

Databases and questions are made up, and so are their words. Tables refer to each other by keys. A question names a
column and a table, and says whether the column is in that table (``of``) or in the one that its key refers to::

    dofi dobi reke behind lula   →  the column reke in the table that dobi refers to
"""

import random
from itertools import islice, pairwise, product

import torch
from matplotlib import pyplot as plt
from torch import nn

import relgraph as rg

LABELER = rg.labelers.SchemaRelations()  # a column of a table, a foreign key, a word that is a name, ...
MARKS, CONSONANTS, VOWELS = ("of", "behind"), "bdfgklmnprst", "aeiou"
WORDS = ["".join(word[::-1]) for word in islice(product(VOWELS, CONSONANTS, VOWELS, CONSONANTS), 2000)]
NUMBER = {word: number for number, word in enumerate([*MARKS, *WORDS])}


def make_question(rng, words):
    """A question about four or five tables, the place of the right column, and whether it asks for what is behind."""
    fresh = iter(rng.sample(words, 40))  # every word has one use only
    tables = [[next(fresh)] for _ in range(rng.randint(4, 5))]
    shared = [next(fresh), next(fresh)]  # columns of all tables, so their names cannot settle the answer
    refers = dict(pairwise(rng.sample(range(len(tables)), len(tables))))  # a chain: the last table refers to none
    columns, keys, foreign = [], {}, {}
    for table in range(len(tables)):
        keys[table] = len(columns)
        columns.append((table, [next(fresh)]))
        others = [*shared, next(fresh), *[next(fresh)] * (table in refers)]
        columns += [(table, [name]) for name in rng.sample(others, len(others))]
        foreign[table] = columns.index((table, [others[-1]]))
    asked, behind, name = rng.choice(list(refers)), rng.random() < 0.5, rng.choice(shared)
    text = rng.sample([next(fresh), name, MARKS[behind], next(fresh), *tables[asked]], 5)
    links = [(foreign[table], keys[other]) for table, other in refers.items()]
    schema = rg.labelers.Schema(text, columns, tables, primary_keys=keys.values(), foreign_keys=links)
    return schema, columns.index((refers[asked] if behind else asked, [name])), behind


def items_of(schema):
    """All items of a question with their kinds: 0 for a word, 1 for a column, 2 for a table."""
    parts = schema.question, [name for _, (name,) in schema.columns], [name for (name,) in schema.tables]
    return [(kind, name) for kind, part in enumerate(parts) for name in part]


def pack(questions, number=NUMBER):
    """Questions end to end: numbers of items, their kinds, how many each question has; labels and answers."""
    schemas, targets, _ = zip(*questions, strict=True)
    kinds, names = zip(*(item for schema in schemas for item in items_of(schema)), strict=True)
    words = torch.tensor([number[name] for name in names])
    return (words, torch.tensor(kinds), [*map(len, schemas)]), LABELER(schemas), torch.tensor(targets)


def make_batches(count, size, part, pack=pack):
    rng, words = random.Random(f"{part} 0"), WORDS[part != "train" :: 2]  # training and test share no words
    return [pack([make_question(rng, words) for _ in range(size)]) for _ in range(count)]


class Pointer(nn.Module):
    """A Transformer that scores columns; words have fixed vectors, items further ``features``, layers ``relations``."""

    def __init__(self, features=0, **relations):
        super().__init__()
        layer = rg.RelationEncoderLayer(64, 4, 128, 0.0, "gelu", norm_first=True, **relations)
        self.register_buffer("vectors", torch.randn(len(NUMBER), 64, generator=torch.Generator().manual_seed(0)))
        self.kinds, self.features = nn.Embedding(3, 64), nn.Linear(features, 64, bias=False) if features else None
        self.encoder, self.score = rg.RelationEncoder(layer, 4, nn.LayerNorm(64)), nn.Linear(64, 1)

    def forward(self, words, kinds, sizes, labels, features=None):
        x = self.vectors[words] + self.kinds(kinds) + (0 if features is None else self.features(features))
        each = zip(self.score(self.encoder(x, labels=labels))[:, 0].split(sizes), kinds.split(sizes), strict=True)
        columns = [scores[kind == 1] for scores, kind in each]
        return nn.utils.rnn.pad_sequence(columns, batch_first=True, padding_value=float("-inf"))


if __name__ == "__main__":
    torch.manual_seed(0)
    batches, tests, rng = make_batches(150, 24, "train"), make_batches(20, 24, "final"), random.Random(0)
    model = Pointer(labeler=LABELER)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, (0.9, 0.98))
    for step in range(steps := 700):
        optimizer.param_groups[0]["lr"] = 3e-3 * min((step + 1) / (0.1 * steps), 1 - step / steps)
        items, labels, answers = rng.choice(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(*items, labels), answers).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    right = sum((model(*items, labels).argmax(-1) == answers).sum() for items, labels, answers in tests)
    print(f"{right} of {20 * 24} questions about unseen databases are right")
    schema, _, _ = make_question(random.Random(4), WORDS[1::2])
    names = [name for _, name in items_of(schema)]
    labels = LABELER(schema).rows(0, 5).cols(5, len(names))  # qc_CEM: a column with this word as name, qt_TEM: a table
    rg.plot.label_matrix(labels, LABELER.names, tokens=(names[:5], names[5:]), ax=plt.subplots(figsize=(11, 3))[1])

# %%
# **What came out.** ``python examples/run.py schema_linking --seeds 5`` gives percent right, in all and by the word in
# the question, mean ± standard deviation (2026-11, one thread of a busy AMD EPYC)::
#
#     variant                       accuracy                of            behind
#     no relations              21.2 % ± 0.6      21.8 % ± 0.9      20.7 % ± 0.7
#     distance                  21.1 % ± 2.0      21.0 % ± 3.4      21.1 % ± 1.4
#     rotary                    17.1 % ± 1.2      16.6 % ± 2.1      17.5 % ± 1.6
#     distance, name match      60.4 % ± 1.5      99.2 % ± 1.0      29.4 % ± 2.5
#     schema relations         100.0 % ± 0.0     100.0 % ± 0.0     100.0 % ± 0.0
#     key tables only          100.0 % ± 0.0     100.0 % ± 0.0     100.0 % ± 0.0
#     all that names tell             60.9 %           100.0 %            29.7 %
#
# ``name match`` says which names occur in the question. The last line is a bound: for ``behind``, 267 of 480 questions,
# other tables have such a column, and only the key says which is meant. Relations lead name matches by 39.6 points
# (+37.7 to +41.5). Only ``schema relations`` was tuned; with half the steps, its seeds had 26 to 100 % of ``behind``.
