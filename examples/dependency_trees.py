"""Hidden verbs: what a dependency tree adds to word order
=======================================================

A model names the form of hidden verbs; its labels are word distance, the dependency tree, or both.

.. image:: /gallery/images/dependency_trees.png
   :alt: Hidden verbs named in the long run, by row

The model sees each verb's lemma and names its form. Words such as auxiliaries settle it, near or far. The results are
those of UD English EWT, web texts with gold trees (``conllu.read("en_ewt-ud-train.conllu.gz")``; from
universaldependencies.org). ``heads`` know each word's head, no relation. To need no files, this page makes up trees::

    has the farmer that the singer is [call] [help] the guest  →  VBG, VBN
"""

import random
from itertools import chain

import torch
from torch import nn

import relgraph as rg
from relgraph.interop import conllu

LABELER = rg.labelers.dependency_relations(self_loop=True)  # "aux⁻¹" where the key is the query's auxiliary
FORMS, VERBS = ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), ("follow", "help", "greet", "visit", "answer", "call")
NOUNS = ("farmer", "singer", "teacher", "doctor", "sailor", "guest")
AUXILIARIES = (("will", "VB", ""), ("has", "VBN", "ed"), ("is", "VBG", "ing"))  # and the form that each requires


def make_clause(rng, noun=None):
    """The words of a clause, or of a relative clause of a noun; each word is a list that ends with its head."""
    lemma, (auxiliary, form, ending) = rng.choice(VERBS), rng.choice(AUXILIARIES)
    verb = [lemma + ending, lemma, "VERB", form, "acl:relcl" if noun else "root", noun]
    roles = zip(rng.sample(NOUNS, 2), ("nsubj", "obj"), strict=True)
    subject, other = ([name, name, "NOUN", "_", role, verb] for name, role in roles)
    helper = [auxiliary, auxiliary, "AUX", "_", "aux", verb]
    first = [["the", "the", "DET", "_", "det", subject], subject]
    if noun:
        return [["that", "that", "PRON", "_", "obj", verb], *first, helper, verb]
    first += make_clause(rng, subject) if rng.random() < 0.8 else []
    first.insert(0 if rng.random() < 0.5 else len(first), helper)
    return [*first, verb, ["the", "the", "DET", "_", "det", other], other]


def make_sentence(rng):
    words = make_clause(rng)
    place = {id(word): number for number, word in enumerate(words, 1)} | {id(None): 0}
    rows = [(place[id(word)], *word[:4], "_", place[id(word[5])], word[4], "_", "_") for word in words]
    return conllu.parse("\n".join("\t".join(map(str, row)) for row in rows))[0]


def hide_verbs(sentence):
    """The words, lemmas in place of verbs, and each word's form: its place in ``FORMS``, or -1 if it is no verb."""
    kinds = zip(sentence.upos, sentence.xpos, strict=True)
    forms = [FORMS.index(tag) if upos == "VERB" and tag in FORMS else -1 for upos, tag in kinds]
    words = zip(sentence.words, sentence.lemmas, forms, strict=True)
    return [(word if form < 0 else lemma).lower() for word, lemma, form in words], forms


def pack(sentences, number):
    """Sentences end to end, so that no pair crosses from one to another: numbers of words, forms and labels."""
    words, forms = ([*chain(*lists)] for lists in zip(*map(hide_verbs, sentences), strict=True))
    labels = LABELER(rg.Graph.batch([sentence.graph for sentence in sentences]))
    return torch.tensor([number[word] for word in words]), torch.tensor(forms), labels


class Inflector(nn.Module):
    """A Transformer over packed words that scores the six forms for each word; ``relations`` are options of a layer."""

    def __init__(self, words, **relations):
        super().__init__()
        layer = rg.RelationEncoderLayer(64, 4, 128, 0.2, "gelu", norm_first=True, **relations)
        self.words, self.hidden, self.drop = nn.Embedding(words, 64), nn.Parameter(torch.randn(64) / 4), nn.Dropout(0.2)
        nn.init.normal_(self.words.weight, std=0.25)
        self.encoder, self.answer = rg.RelationEncoder(layer, 2, nn.LayerNorm(64)), nn.Linear(64, len(FORMS))

    def forward(self, words, hidden, labels):
        x = self.drop(self.words(words) + hidden[:, None] * self.hidden)
        return self.answer(self.drop(self.encoder(x, labels=labels)))


if __name__ == "__main__":
    torch.manual_seed(0)
    rng = random.Random(0)
    sentences, tests = ([make_sentence(rng) for _ in range(count)] for count in (1000, 200))
    number = {word: at for at, word in enumerate(sorted({word for one in sentences for word in hide_verbs(one)[0]}))}
    batches = [pack(sentences[at : at + 40], number) for at in range(0, 1000, 40)]
    model = Inflector(len(number), labeler=LABELER)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for _ in range(epochs := 4):
        for words, forms, labels in rng.sample(batches, len(batches)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words, forms >= 0, labels)[forms >= 0], forms[forms >= 0]).backward()
            optimizer.step()
    words, forms, labels = pack(tests, number)
    right = (model.eval()(words, forms >= 0, labels).argmax(-1) == forms)[forms >= 0]
    print(f"{right.sum()} of {len(right)} hidden verbs of unseen made-up sentences are right")
    # "nsubj": the query is the subject of the key; "nsubj⁻¹": the key is the subject of the query
    rg.plot.label_matrix(LABELER(tests[2].graph), LABELER.names, tokens=hide_verbs(tests[2])[0])

# %%
# **What came out.** ``python examples/run.py dependency_trees``: right forms of 2,605 verbs, three seeds (five for
# distance, rotary and ``relations + distance``), mean ± standard deviation. A verb's nearest auxiliary, marker or
# subject is 1 or 2 words away (``near``), or 3 or more (``far``, 111 verbs) (2026-11, one thread, torch 2.13)::
#
#     variant                           all           near            far
#     no relations             56.0 % ± 1.1   59.5 % ± 1.2   36.9 % ± 0.9
#     distance                 73.9 % ± 0.2   81.7 % ± 0.3   40.5 % ± 2.5
#     rotary                   73.2 % ± 0.5   80.8 % ± 0.9   39.3 % ± 2.6
#     heads                    73.3 % ± 0.4   80.4 % ± 0.5   47.7 % ± 0.9
#     heads + distance         76.1 % ± 0.4   82.2 % ± 0.2   46.2 % ± 2.9
#     relations                78.7 % ± 0.3   83.0 % ± 0.3   52.3 % ± 4.5
#     relations + distance     79.7 % ± 0.3   83.6 % ± 0.7   53.9 % ± 5.3
#     key tables only          76.9 % ± 0.4   83.0 % ± 0.2   48.0 % ± 5.5
#
# Relations with distance lead distance by 5.4 to 6.1 points (95 % interval) and rotary by 5.7 to 7.3; they tie with
# relations. A rule, the most frequent form given all relations, is right for 57.0 %. A first control, distances and the
# same tree as features of the words, is right for 80.8 % and 81.1 % (two seeds; ``relations + distance`` with these
# 80.0 % and 79.4 %): labels of pairs need not be what helps. Settings were chosen on dev; annotators saw the forms.
