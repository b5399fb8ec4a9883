"""Names of functions: a program's graph in, words out
===================================================

A Transformer reads functions as graphs, of syntax and data flow, and writes their names, word by word.

.. image:: /gallery/images/naming_functions.png
   :alt: F1 of the words of names in the long run, by row

The functions come from Python's own library; their names are hidden everywhere. This page trains for seconds, on short
functions, and writes greedily; the results come from longer training on more functions, and a beam search.
"""

import ast
import random
import re
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import relgraph as rg
from relgraph.interop import python

RELATIONS = rg.CodeRelations(attend="edges")  # two labels for each type of edge; only pairs with an edge attend
WIDTH, DROPOUT, PAD, START, END = 64, 0.2, 0, 1, 2


def split(token):
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+|[^\w\s]", token)][:4] or ["_"]


def functions(rng):
    for path in rng.sample(paths := sorted(Path(ast.__file__).parent.glob("*.py")), len(paths)):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno < 12:
                yield python.read(re.sub(rf"\b{node.name}\b", "NAME", ast.unparse(node))), split(node.name)


def make_batch(asked, numbers):
    """Functions packed end to end: names, padded, with start and end; the words of tokens; and the graph."""
    names = [torch.tensor([START, *map(numbers.get, name), END]) for _, name in asked]
    words = [torch.tensor([*map(numbers.get, split(token))]) for source, _ in asked for token in source.tokens]
    names, words = (pad_sequence(rows, batch_first=True, padding_value=PAD) for rows in (names, words))
    return names, words, rg.Graph.batch([source.graph for source, _ in asked])


class Namer(nn.Module):
    """Writes names from the words of training names, or copies words of the function (Allamanis et al. 2016)."""

    def __init__(self, size, frequency, labeler):
        super().__init__()
        self.labeler, self.written = labeler, len(frequency)
        self.words = nn.EmbeddingBag(size, WIDTH, mode="sum", padding_idx=PAD)
        self.kinds = nn.Embedding(len(python.TOKEN_KINDS), WIDTH)
        self.transformer = rg.RelationTransformer(
            WIDTH, 4, 2, 1, 128, 0.0, "gelu", norm_first=True, labeler=labeler, target_labeler=rg.ClippedDistance(4)
        )
        self.points, self.drop, self.bias = nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT), nn.Parameter(frequency.log())
        for table in (self.words, self.kinds):
            nn.init.normal_(table.weight, std=WIDTH**-0.5)
        self.words.weight.data[PAD] = 0

    def forward(self, names, words, graph, labels=None):
        return self.decode(names[:, :-1], *self.encode(words, graph, labels))

    def encode(self, words, graph, labels=None):
        nodes = self.words(words) / (words != PAD).sum(-1, keepdim=True).sqrt() + self.kinds(graph.node_type)
        labels = self.labeler(graph) if labels is None else labels
        memory = self.transformer.encode(self.drop(WIDTH**0.5 * nodes), src_labels=labels)
        sizes = graph.borders().diff()
        memory, words = (pad_sequence([*x.split(sizes.tolist())], batch_first=True) for x in (memory, words))
        return memory, torch.arange(memory.shape[1]) >= sizes[:, None], words  # [B, M, E], [B, M], [B, M, W]

    def decode(self, names, memory, padding, words, cache=None):
        given = self.drop(WIDTH**0.5 * nn.functional.embedding(names, self.words.weight))
        y = self.drop(self.transformer.decode(given, memory, memory_key_padding_mask=padding, cache=cache))
        known = y @ self.words.weight[: self.written].T + self.bias
        copied = (self.points(y) @ memory.transpose(1, 2) / WIDTH**0.5).repeat_interleave(words.shape[-1], -1)
        words = words.flatten(1)[:, None]
        copied = copied.masked_fill((words <= END) | (words >= self.written), float("-inf"))
        chances = torch.cat([known, copied], -1).softmax(-1)
        places = words.where(words < self.written, PAD).expand_as(copied)  # a word's places add to its own chance
        return chances[..., : self.written].scatter_add(-1, places, chances[..., self.written :]).clamp(min=1e-9).log()


if __name__ == "__main__":
    asked = [function for function, _ in zip(functions(random.Random(0)), range(240), strict=False)]
    known = sorted({word for _, name in asked for word in name})
    others = sorted({word for source, _ in asked for token in source.tokens for word in split(token)} - {*known})
    numbers = {word: number for number, word in enumerate([*known, *others], END + 1)}
    *training, test = [make_batch(asked[first : first + 40], numbers) for first in range(0, 240, 40)]
    torch.manual_seed(0)
    model = Namer(END + 1 + len(numbers), torch.ones(END + 1 + len(known)), RELATIONS)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for step in range(steps := 60):
        names, *given = training[step % len(training)]
        optimizer.zero_grad()
        nn.functional.nll_loss(model(names, *given).mT, names[:, 1:], ignore_index=PAD).backward()
        optimizer.step()
    memory, names = model.eval().encode(*test[1:]), torch.full((40, 1), START)
    for _ in range(4):
        names = torch.cat([names, model.decode(names, *memory)[:, -1:].argmax(-1)], 1)
    print(*asked[200][1], "is written as", *(known[word - END - 1] for word in names[0].tolist() if word > END))
    # One label per pair, such as CFG_NEXT: the query may run next after the key; python.read says what all names mean.
    first = rg.CodeRelations(duplicates="first")
    rg.plot.label_matrix(first(asked[0][0].graph), first.names, tokens=asked[0][0].tokens)

# %%
# **A tie.** ``python examples/run.py naming_functions``, six minutes: percent on 1,671 names, three seeds (2026-11)::
#
#     variant                      exact            F1     greedy F1
#     no relations             2.3 ± 0.1     9.7 ± 0.3     9.5 ± 0.2
#     distance                 2.7 ± 0.6    10.3 ± 0.5    10.3 ± 0.6
#     relations                2.3 ± 0.1    10.5 ± 0.1    10.6 ± 0.7
#     most frequent name           1.7           1.4
#     nearest function             6.6          10.6
#
# ``relations`` leads ``no relations`` by 0.8 points of F1 (95 % interval -0.1 to 1.5, a bootstrap over files), and
# ``distance`` by 0.2 (-0.5 to 0.8). No row beats the last, the name of the function with the most similar words.
