"""The example of hidden verbs: what is hidden stays hidden, trees and clues are read right, and its command line works."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("conllu")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import dependency_trees as example
from dependency_trees import ask_all

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
LABELERS = list(example.VARIANTS.values())
DATA = Path(os.environ.get("RELGRAPH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
FEW = {"train": 12, "dev": 4, "test": 6}


@pytest.fixture(scope="module")
def questions():
    return ask_all(TEXT)


def test_verbs_show_their_lemmas_and_auxiliaries_their_forms(questions):
    first, second = questions
    assert first.shown == ["dogs", "do", "n't", "really", "ever", "bark", ",", "they", "sleep"]
    assert [example.FORMS[t] if t >= 0 else "" for t in first.targets] == [*[""] * 5, "VB", "", "", "VBD"]
    assert second.shown == ["go", "2nd"]
    assert second.targets == [example.FORMS.index("VBN"), -1]


def test_helpers_and_families_are_those_of_the_tree(questions):
    first, second = questions
    assert first.helpers == [0, 0, 0, 0, 0, 4, 0, 0, 1]
    assert second.helpers == [0, 0]
    assert first.families[5] == ("root", {"nsubj", "aux", "advmod", "parataxis"})
    assert first.families[8] == ("parataxis", {"punct", "nsubj"})
    assert second.families == [("root", {"advmod"}), ("advmod", set())]


def test_the_form_of_a_verb_reaches_nothing_but_the_target():
    line = "1\t{}\teat\tVERB\t{}\t_\t0\troot\t_\t_\n\n"
    (ate,), (eats,) = ask_all(line.format("ate", "VBD")), ask_all(line.format("eats", "VBZ"))
    assert (ate.shown, ate.helpers, ate.families, ate.graph) == (eats.shown, eats.helpers, eats.families, eats.graph)
    assert ate.targets != eats.targets


def test_a_verb_without_one_of_the_six_tags_is_not_asked_for():
    assert ask_all("1\tgonna\tgo\tVERB\tGW\t_\t0\troot\t_\t_\n\n") == []


def test_read_takes_the_first_sentences(tmp_path):
    path = tmp_path / "bank.conllu.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert [len(example.read(path, most)) for most in (1, 2, 3, None)] == [1, 1, 2, 2]
    assert example.read(path) == ask_all(TEXT)


def test_rare_words_go_by_their_endings(questions):
    first, second = questions
    words = example.Vocabulary([first, first, second])
    assert sorted(words.values()) == list(range(1, len(words) + 1))
    assert {"dogs", "sleep", "-go", "-<number>"} < words.keys()
    assert "go" not in words
    assert words["going"] == 0
    assert words["go"] == words["-go"] > 0
    assert words["1999"] == words["2nd"] == words["-<number>"]
    assert len(words) == 11  # asking adds nothing


def test_batches_hold_every_sentence_once_and_keep_their_size(questions):
    words = example.Vocabulary(questions)
    batches = example.make_batches(questions * 400, words)
    assert sum(batch.graph.num_graphs for batch in batches) == 800
    assert sum((batch.targets >= 0).sum().item() for batch in batches) == 400 * 3
    for batch in batches:
        assert len(batch.words) == len(batch.targets) == len(batch.helpers) == batch.graph.num_nodes
        assert batch.graph.num_nodes <= example.BATCH_WORDS + max(len(question.shown) for question in questions)
    sizes = torch.cat([batch.graph.ptr.diff() for batch in batches])
    assert torch.equal(sizes, sizes.sort().values)


def test_a_batch_is_its_sentences_end_to_end(questions):
    words = example.Vocabulary(questions)
    batch = example.Batch.make(questions, words)
    assert batch.graph.ptr.tolist() == [0, 9, 11]
    assert batch.words.tolist() == [words[word] for question in questions for word in question.shown]
    assert batch.targets.tolist() == questions[0].targets + questions[1].targets
    assert batch.helpers.tolist() == questions[0].helpers + questions[1].helpers


@pytest.mark.parametrize("labeler", LABELERS, ids=example.VARIANTS)
def test_a_sentence_is_answered_in_a_batch_as_alone(questions, labeler):
    words = example.Vocabulary(questions)
    model = example.Inflector(len(words) + 1, labeler).eval()
    together = example.Batch.make(questions, words)
    alone = [example.Batch.make([question], words) for question in questions]
    scores = torch.cat([model(batch, model.labeler(batch.graph)) for batch in alone])
    torch.testing.assert_close(model(together, model.labeler(together.graph)), scores)


@pytest.mark.parametrize(
    "labeler", [LABELERS[0], example.HEADS, example.RELATIONS], ids=["nothing", "heads", "relations"]
)
def test_without_distance_word_order_does_not_count(questions, labeler):
    """The same tree over the same words in another order gets the same answers; the row that has distances does not."""
    words = example.Vocabulary(questions)
    (batch,) = example.make_batches(questions[:1], words)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    graph = example.rg.Graph(order.argsort()[batch.graph.edge_index], 9, edge_type=batch.graph.edge_type)
    graph = example.rg.Graph.batch([graph])
    moved = example.Batch(batch.words[order], batch.targets[order], batch.helpers[order], graph)
    for tested, same in ((labeler, True), (example.DISTANCE, False)):
        model = example.Inflector(len(words) + 1, tested).eval()
        scores, others = (model(b, model.labeler(b.graph)) for b in (batch, moved))
        assert torch.allclose(scores[order], others, atol=1e-5) == same


def test_training_is_the_same_twice_and_lowers_the_loss(questions):
    words = example.Vocabulary(questions)
    batches = example.make_batches(questions * 5, words)

    def losses():
        torch.manual_seed(0)
        return example.train(example.Inflector(len(words) + 1, example.RELATIONS), batches, 25, 0)

    first = losses()
    assert first == losses()
    assert first[-1] < first[0] / 2


def test_accuracy_by_the_nearest_helper(questions):
    words = example.Vocabulary(questions)

    class Always(example.Inflector):
        def forward(self, batch, labels):
            scores = torch.zeros(len(batch.words), len(example.FORMS))
            scores[:, example.FORMS.index("VBD")] = 1
            return scores

    batches = example.make_batches(questions, words)
    shares = example.accuracy(Always(len(words) + 1, example.DISTANCE), batches)
    assert shares == {"all": pytest.approx(1 / 3), "near": 1.0, "far": 0.0}


def test_guesses_follow_the_counts_of_training(questions):
    line = "1\tx\tx\tVERB\t{}\t_\t0\troot\t_\t_\n\n"
    training = ask_all("".join(line.format(tag) for tag in ("VB", "VB", "VBZ"))) + questions
    relation = example.GUESSES["its relation to its head"]
    assert example.guess(training, questions, example.GUESSES["nothing"]) == pytest.approx(1 / 3)  # VB every time
    assert example.guess(training, questions, relation) == pytest.approx(2 / 3)  # VB at a root, VBD at parataxis
    assert example.guess(training[:3], questions, relation) == pytest.approx(1 / 3)  # parataxis is new


def test_report_shows_mean_and_spread():
    shares = [{"all": right, "near": right, "far": right} for right in (0.5, 0.6, 0.7)]
    runs = [example.Run("a", seed, share, share, 2.0, []) for seed, share in enumerate(shares)]
    assert example.report(runs).count("60.0 % ± 10.0") == 3
    assert "±" not in example.report(runs[:1])


def test_a_folder_without_the_treebank_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        example.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "--data must name the folder of ud-ewt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def check_results(folder, steps, data):
    results = json.loads((folder / "results.json").read_text())
    assert [run["variant"] for run in results["runs"]] == list(example.VARIANTS)
    assert (results["steps"], results["data"]) == (steps, data)
    for run in results["runs"]:
        assert len(run["losses"]) == steps
        assert all(0 <= share <= 1 for part in ("validation", "test") for share in run[part].values())
    guesses = results["notes"]["guesses"]
    assert guesses.keys() == example.GUESSES.keys()
    assert all(0 <= share <= 1 for share in guesses.values())
    return results


def test_command_line_trains_all_rows_on_the_treebank(tmp_path, capsys, monkeypatch):
    if not (DATA / "ud-ewt").is_dir():
        pytest.skip(f"the treebank UD English EWT is not in {DATA}; RELGRAPH_DATA names its folder")
    monkeypatch.setattr(example, "QUICK_SENTENCES", dict.fromkeys(example.PARTS, 200))
    assert example.main(["--quick", "--steps", "2", "--data", str(DATA), "--out", str(tmp_path)]) == 0
    results = check_results(tmp_path, 2, "UD English EWT")
    assert 100 < results["sentences"]["train"] <= 200
    assert "made up" not in capsys.readouterr().out


def test_short_mode_makes_up_its_sentences_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "QUICK_SENTENCES", FEW)
    monkeypatch.setenv("RELGRAPH_DATA", str(tmp_path / "none"))
    assert example.main(["--quick", "--steps", "2", "--out", str(tmp_path)]) == 0
    assert check_results(tmp_path, 2, "made up")["sentences"] == FEW
    printed = capsys.readouterr().out
    assert printed.startswith("the sentences and their trees are made up")
    assert all(name in printed for name in (*example.VARIANTS, *example.GUESSES))
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"results.png", "labels.png", "tree.png", "relations.png"}
    assert all(f"picture: {tmp_path / name}" in printed for name in pictures)


def test_a_stopped_command_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(example, "QUICK_SENTENCES", FEW)
    command, train, started = ["--quick", "--steps", "1", "--out", str(tmp_path)], example.train, []

    def stopped(*arguments):
        started.append(arguments[-1])
        if len(started) == 2:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(example, "train", stopped)
    assert example.main(command) == 130
    printed = capsys.readouterr().out
    assert "stopped: 1 of 6 runs are kept" in printed
    assert "no relations" in printed[printed.index("stopped") :]
    assert example.main(command) == 0
    first, second, *_ = example.VARIANTS
    assert started == [f"{name}, seed 0" for name in (first, second, second, *list(example.VARIANTS)[2:])]
    with pytest.raises(SystemExit, match="2"):
        example.main([*command, "--steps", "2"])
    assert "begin anew by --fresh" in capsys.readouterr().err


def test_the_verb_of_the_pictures_is_far_from_its_helper(questions):
    assert example.far_verb(questions) == (questions[0], 5)
