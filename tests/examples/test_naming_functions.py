"""Tests the example of function names: names are hidden, test names untrained, and search and scores are right."""

from itertools import product

import pytest
import torch

pytest.importorskip("tokenizers")

from experiments import naming_functions as example
from function_names import HIDDEN_NAME, Batch, Question, Words, has_a_name
from stdlib_functions import Sizes, read_functions, subtokens

from examples.translation.search import Search
from examples.translation.vocabulary import END, SPECIAL, START

MODULE = '''
class Tree:
    @{name}.setter
    def {name}(self, node):
        """{name} doc."""
        if node.size:
            return self.{name}(node.left) + super().{name}(node, {name}=1)
        return f"{{node.{name}}}" + "{name}"

def get_size(a):
    return len(a.depth)

def maxDepth2(a, b):
    c = b
    return max(a, c)

def __repr__(self):
    return self.text + 1

def _(a):
    return a
'''


def ask(folder, name="count_leaves"):
    (folder / "module.py").write_text(MODULE.format(name=name))
    functions = [function for function, _ in read_functions(folder / "module.py", "module.py", Sizes(1, 100, 0))]
    return [Question.ask(function) for function in functions if has_a_name(function)]


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return ask(tmp_path_factory.mktemp("module"))


@pytest.fixture(scope="module")
def words(questions):
    return Words(questions)


def namer(words, labeler=example.RELATIONS):
    torch.manual_seed(0)
    return example.build(words, labeler).double().eval()


def test_a_name_reaches_nothing_but_the_answer(questions, tmp_path):
    first, *others = questions
    assert [question.name for question in questions] == [("count", "leaves"), ("get", "size"), ("max", "depth", "2")]
    assert first.tokens[:3] == ("def", HIDDEN_NAME, "(")
    assert first.tokens.count(HIDDEN_NAME) == 4  # its definition, its call, and an argument of that name
    assert not any("count" in token or "leaves" in token for token in first.tokens)
    renamed, *same = ask(tmp_path, "ab")
    assert (renamed.tokens, renamed.graph) == (first.tokens, first.graph)
    assert [(q.tokens, q.name, q.graph) for q in same] == [(q.tokens, q.name, q.graph) for q in others]
    assert renamed.name == ("ab",)


def test_words_of_the_function_can_be_copied(questions, words):
    model, batch = namer(words), Batch.make(questions, words)
    chances = model(batch.names, batch.words, batch.graph).exp()
    torch.testing.assert_close(chances.sum(-1), torch.ones_like(chances[..., 0]), atol=1e-5, rtol=0)
    with torch.no_grad():
        model.bias.fill_(-1e3)  # leaves only words of the function
    likely = [
        set(row.nonzero()[:, 0].tolist()) for row in model(batch.names, batch.words, batch.graph).exp()[:, 0] > 1e-6
    ]
    present = [{words[word] for token in question.tokens for word in subtokens(token)} for question in questions]
    assert likely == [{number for number in numbers if number < words.written} for numbers in present]


@torch.no_grad()
def likelihood(model, question, words, ids):
    """The log-probability of a name and its end, computed from the whole name."""
    batch = Batch.make([question], words)
    given = torch.tensor([[START, *ids, END]])
    scores = model.decode(given[:, :-1], *model.encode(batch.words, batch.graph)).log_softmax(-1)
    return scores[0].gather(-1, given[0, 1:, None]).sum().item()


def test_the_beam_finds_the_likeliest_name(questions, words, monkeypatch):
    """A beam as wide as the number of names of up to two words finds the best of these."""
    monkeypatch.setattr(example, "LONGEST_NAME", 2)
    model, ids = namer(words), range(SPECIAL, words.written)
    names = [(), *product(ids), *product(ids, repeat=2)]
    wide = example.write(model, questions, words, Search(beam=len(names), length_penalty=0))
    for question, found in zip(questions, wide, strict=True):
        best = max(names, key=lambda name: likelihood(model, question, words, name))
        assert found == words.text(best)
    assert (
        example.write(model, questions[::-1], words, Search(3))
        == example.write(model, questions, words, Search(3))[::-1]
    )


def test_scores_by_hand():
    assert example.count(("get", "size"), ("get", "size")) == (1, 1, 2, 2, 2)
    assert example.count(("size", "size", "of"), ("get", "size")) == (0, 1, 1, 3, 2)
    assert example.count((), ("get",)) == (0, 1, 0, 0, 1)


def test_guesses(questions):
    train = [questions[1], questions[1], questions[2]]
    found = example.guesses(train, questions)
    assert found["most frequent name"] == [("get", "size")] * 3
    assert found["nearest function"][1:] == [("get", "size"), ("max", "depth", "2")]
    assert example.score(found["most frequent name"], questions) == pytest.approx({"exact": 1 / 3, "F1": 4 / 13})


def test_how_far_ahead_pools_seeds_and_draw_files(questions):
    right = [" ".join(question.name) for question in questions]
    runs = [example.Run("relations", seed, {}, 0.0, right) for seed in (0, 1)]
    runs += [example.Run("distance", 0, {}, 0.0, ["", *right[1:]]), example.Run("distance", 1, {}, 0.0, right)]
    one_file = example.ahead(runs, questions, "relations")["distance"]
    assert one_file["exact"] == pytest.approx([1 / 6, 1 / 6, 1 / 6])
    apart = [Question(q.tokens, q.name, q.graph, str(n)) for n, q in enumerate(questions)]
    by, low, high = example.ahead(runs, apart, "relations")["distance"]["exact"]
    assert (by, low, high) == pytest.approx((1 / 6, 0.0, 1 / 2))
