"""Made-up sentences: trees that read as CoNLL-U, and forms that follow from a verb's own dependents and head."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("conllu")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import made_up_trees
from made_up_trees import AUXILIARIES, ENDINGS, VERBS, treebank

from relgraph.interop import conllu

SENTENCES = conllu.parse(treebank(300, random.Random(0)))
NUMBER = {form: number for _, *forms in AUXILIARIES.values() for number, form in enumerate(forms)}


def test_the_same_seed_gives_the_same_sentences():
    assert treebank(5, random.Random(1)) == treebank(5, random.Random(1)) != treebank(5, random.Random(2))


def test_trees_are_projective_and_short():
    for sentence in SENTENCES:
        assert len(sentence.words) <= 40
        for head, word in sentence.graph.edge_index.T.tolist():
            between = range(min(head, word) + 1, max(head, word))
            parents = sentence.graph.parents().tolist()
            assert all(min(head, word) <= parents[n] <= max(head, word) for n in between)


def form_by_tree(sentence, verb):
    """The form that the dependents and the head of a verb ask for."""
    heads = sentence.graph.parents().tolist()
    mine = {sentence.relations[n]: n for n, head in enumerate(heads) if head == verb}
    adverbs = [sentence.words[n] for n, head in enumerate(heads) if head == verb and sentence.upos[n] == "ADV"]
    if "aux" in mine:
        lemma = sentence.lemmas[mine["aux"]]
        return next(form for form, (name, *_) in AUXILIARIES.items() if name == lemma)
    if "yesterday" in adverbs:
        return "VBD"
    subject = mine["nsubj"] if sentence.words[mine["nsubj"]] != "that" else heads[verb]
    return "VBP" if sentence.words[subject].endswith("s") else "VBZ"


def test_forms_follow_from_the_tree():
    seen = set()
    for sentence in SENTENCES:
        for verb, upos in enumerate(sentence.upos):
            if upos == "VERB":
                form = form_by_tree(sentence, verb)
                assert sentence.xpos[verb] == form
                assert sentence.words[verb] == sentence.lemmas[verb] + ENDINGS[form]
                assert sentence.lemmas[verb] in VERBS
                seen.add(form)
    assert seen == ENDINGS.keys()


def test_the_nearest_auxiliary_or_noun_would_mislead():
    """What stands nearest before a verb, an auxiliary or a noun, is often not the verb's own."""
    own = []
    for sentence in SENTENCES:
        parents = sentence.graph.parents().tolist()
        for verb, upos in enumerate(sentence.upos):
            near = [n for n in range(verb) if sentence.upos[n] in ("AUX", "NOUN")]
            if upos == "VERB" and near:
                own.append(parents[near[-1]] == verb)
    assert 0.3 < sum(own) / len(own) < 0.8


def test_auxiliaries_agree_with_their_subject():
    for sentence in SENTENCES:
        heads = sentence.graph.parents().tolist()
        for aux, upos in enumerate(sentence.upos):
            if upos == "AUX" and sentence.words[aux] != "will":
                verb = heads[aux]
                (subject,) = (n for n, h in enumerate(heads) if h == verb and sentence.relations[n] == "nsubj")
                noun = subject if sentence.words[subject] != "that" else heads[verb]
                assert NUMBER[sentence.words[aux]] == sentence.words[noun].endswith("s")


def test_written_numbers_heads_from_one():
    text = made_up_trees.written(
        made_up_trees.Word("go", "go", "VERB", "VB", right=[("advmod", made_up_trees.Word("on", "on", "ADV"))])
    )
    assert text == "# text = go on\n1\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n2\ton\ton\tADV\t_\t_\t1\tadvmod\t_\t_\n\n"
