"""Tests the example of hidden verbs: hidden forms stay hidden, and trees, clues and made-up sentences are right."""

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("conllu")

import dependency_trees as page
from experiments import dependency_trees as example
from experiments.dependency_trees import ROWS, Batch, ask_all

TEXT = """\
# text = Dogs don't really ever bark, they sleep.
1\tDogs\tdog\tNOUN\tNNS\t_\t6\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t6\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t6\tadvmod\t_\t_
4\treally\treally\tADV\tRB\t_\t6\tadvmod\t_\t_
5\tever\tever\tADV\tRB\t_\t6\tadvmod\t_\t_
6\tbark\tbark\tVERB\tVB\t_\t0\troot\t_\t_
7\t,\t,\tPUNCT\t,\t_\t9\tpunct\t_\t_
8\tthey\tthey\tPRON\tPRP\t_\t9\tnsubj:pass\t_\t_
8.1\tjust\tjust\tADV\tRB\t_\t_\t_\t_\t_
9\tSlept\tsleep\tVERB\tVBD\t_\t6\tparataxis\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

1\tGone\tgo\tVERB\tVBN\t_\t0\troot\t_\t_
2\t2nd\t2nd\tADV\tRB\t_\t1\tadvmod\t_\t_

"""


@pytest.fixture(scope="module")
def questions():
    return ask_all(TEXT)


def test_verbs_show_their_lemmas_and_auxiliaries_their_forms(questions):
    first, second = questions
    assert first.shown == ["dogs", "do", "n't", "really", "ever", "bark", ",", "they", "sleep"]
    assert [page.FORMS[t] if t >= 0 else "" for t in first.targets] == [*[""] * 5, "VB", "", "", "VBD"]
    assert second.shown == ["go", "2nd"]
    assert second.targets == [page.FORMS.index("VBN"), -1]
    assert first.helpers == [0, 0, 0, 0, 0, 4, 0, 0, 1]
    assert first.families[5] == ("root", {"nsubj", "aux", "advmod", "parataxis"})
    assert first.families[8] == ("parataxis", {"punct", "nsubj"})


def test_accuracy_by_the_nearest_helper(questions):
    words = example.Vocabulary(questions)

    class Always(page.Inflector):
        def forward(self, words, *_):
            scores = torch.zeros(len(words), len(page.FORMS))
            scores[:, page.FORMS.index("VBD")] = 1
            return scores

    batches = example.make_batches(questions, words)
    shares = example.accuracy(ROWS["distance"], Always(1, labeler=example.DISTANCE), batches)
    assert shares == {"all": pytest.approx(1 / 3), "near": 1.0, "far": 0.0}


@pytest.mark.parametrize("name", ROWS)
def test_rows_read_a_sentence_in_a_batch_as_alone_and_see_its_order_or_do_not(name, questions):
    torch.manual_seed(0)
    row, words = ROWS[name], example.Vocabulary(questions)
    model = row.model(len(words) + 1).eval()
    both, last = (Batch.make(some, words) for some in (questions, questions[1:]))
    scores = row.scores(model, last)
    torch.testing.assert_close(row.scores(model, both)[-2:], scores)
    moved = replace(last, words=last.words.flip(0), targets=last.targets.flip(0))
    assert torch.allclose(row.scores(model, moved).flip(0), scores, atol=1e-5) == (name == "no relations")
    kinds = {weight.split(".tables.")[1].split(".")[0] for weight in model.state_dict() if ".tables." in weight}
    assert kinds == (set() if row.labeler is example.PAIRS else set(row.tables))


def test_guesses_follow_the_counts_of_training(questions):
    line = "1\tx\tx\tVERB\t{}\t_\t0\troot\t_\t_\n\n"
    training = ask_all("".join(line.format(tag) for tag in ("VB", "VB", "VBZ"))) + questions
    relation = example.GUESSES["its relation to its head"]
    assert example.guess(training, questions, example.GUESSES["nothing"]) == pytest.approx(1 / 3)  # always VB
    assert example.guess(training, questions, relation) == pytest.approx(2 / 3)  # VB at a root, VBD at parataxis
    assert example.guess(training[:3], questions, relation) == pytest.approx(1 / 3)  # parataxis is new


def test_auxiliaries_settle_the_forms_of_the_page():
    rng, forms = random.Random(0), {name: form for name, form, _ in page.AUXILIARIES}
    for sentence in (page.make_sentence(rng) for _ in range(50)):
        heads = sentence.graph.parents().tolist()
        helpers = {
            head: word for word, head, kind in zip(sentence.words, heads, sentence.upos, strict=True) if kind == "AUX"
        }
        assert helpers.keys() == {at for at, kind in enumerate(sentence.upos) if kind == "VERB"}
        assert all(sentence.xpos[verb] == forms[word] for verb, word in helpers.items())
