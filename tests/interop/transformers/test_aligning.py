"""Graphs of words on the tokens of fast tokenizers, against loops over pairs of tokens."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

import relgraph as rg  # noqa: E402
from relgraph.interop.transformers import align  # noqa: E402

TEXTS = [["she", "walks", "unhappily"], ["dogs", "walk", "happily", "she", "walks"]]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "she", "walk", "##s", "dog", "un", "##happi", "happi", "##ly"]


@pytest.fixture(params=["right", "left"])
def tokenizer(request):
    numbers = {piece: number for number, piece in enumerate(PIECES)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", padding_side=request.param, cls_token="[CLS]", sep_token="[SEP]"
    )


def tree(words):
    """A chain from the last word to the first, with a type for each edge."""
    parents = torch.tensor([*range(1, len(words)), -1])
    kinds = torch.arange(len(words))
    return rg.Graph.from_parents(parents, edge_type=kinds % 2, node_type=kinds)


def words_of(encoding, row, first_only=False):
    """The word of each token, -1 for none."""
    seen, found = set(), []
    for word in encoding.word_ids(row):
        found.append(-1 if word is None or (first_only and word in seen) else word)
        seen.add(word)
    return found


@pytest.mark.parametrize("pieces", ["all", "first"])
@pytest.mark.parametrize("most", [6, None])
def test_against_loops(tokenizer, pieces, most):
    encoding = tokenizer(TEXTS, is_split_into_words=True, padding=True, truncation=most is not None, max_length=most)
    graphs = [tree(words) for words in TEXTS]
    graph = align(encoding, graphs, pieces=pieces)
    labels = align(encoding, [rg.TreeRelation()(one) for one in graphs], pieces=pieces)
    length = len(encoding["input_ids"][0])
    edges = set()
    ids, attend = labels.to_dense()
    for row, one in enumerate(graphs):
        words = words_of(encoding, row, pieces == "first")
        of_words = rg.TreeRelation()(one).to_dense()[0][0]
        types = {(int(k), int(q)): int(t) for (k, q), t in zip(one.edge_index.T, one.edge_type, strict=True)}
        for query, mine in enumerate(words):
            assert graph.node_type[row * length + query] == (-1 if mine < 0 else one.node_type[mine])
            for key, theirs in enumerate(words):
                if min(mine, theirs) >= 0 and (theirs, mine) in types:
                    edges.add((row * length + key, row * length + query, types[theirs, mine]))
                assert ids[row, query, key] == (-1 if min(mine, theirs) < 0 else of_words[mine, theirs])
    found = [*map(tuple, torch.cat([graph.edge_index, graph.edge_type[None]]).T.tolist())]
    assert len(found) == len(set(found))
    assert set(found) == edges
    assert graph.ptr.tolist() == [0, length, 2 * length]
    assert attend.all()


def test_spans_and_pairs(tokenizer):
    text = "she walks unhappily"
    graph = rg.Graph(torch.tensor([[0, 1], [1, 2]]), 3)
    encoding = tokenizer(text)  # [CLS] she walk ##s un ##happi ##ly [SEP]
    spans = [(0, 19), (4, 9), (10, 12)]  # the sentence, "walks", "un"
    assert align(encoding, graph, spans=spans).edge_index.T.tolist() == [
        [1, 2], [1, 3], [5, 2], [5, 3], [6, 2], [6, 3], [2, 4], [3, 4],
    ]  # fmt: skip
    pair = tokenizer("she", "she walks")  # [CLS] she [SEP] she walk ##s [SEP]
    two = rg.Graph(torch.tensor([[0], [1]]), 2)
    assert align(pair, two, sequence=1).edge_index.T.tolist() == [[3, 4], [3, 5]]
    total = rg.ClippedDistance(1)(2) + rg.Segments(1)(torch.zeros(2, dtype=torch.long))
    first, second = (part.to_dense()[0][0] for part in align(pair, total, sequence=1).parts)
    assert first[3].tolist() == [-1, -1, -1, 1, 2, 2, -1]
    assert second[3].tolist() == [-1, -1, -1, 0, 0, 0, -1]


CUT = {"truncation": True, "max_length": 6}


@pytest.mark.parametrize("options", [{}, CUT, {**CUT, "return_overflowing_tokens": True, "stride": 1}], ids=str)
@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("end", ["right", "left"])
def test_texts_and_graphs_are_paired_by_their_words(tokenizer, options, labels, end):
    """Also of a text that was cut, whose rest the tokenizer keeps."""
    tokenizer.truncation_side = end
    encoding = tokenizer(TEXTS, is_split_into_words=True, padding=True, **options)
    pieces = encoding.get("overflow_to_sample_mapping", [0, 1])
    made = [rg.TreeRelation()(tree(words)) if labels else tree(words) for words in TEXTS]
    align(encoding, [made[text] for text in pieces])
    swapped = [made[1 - text] for text in pieces]
    with pytest.raises(ValueError, match="graph must have a node for each of 3 words of the text, got 5: strict=False"):
        align(encoding, swapped)
    few = [made[0]] * len(pieces)
    with pytest.raises(ValueError, match="graph must have a node for each of 5 words of the text, got 3"):
        align(encoding, few)
    assert align(encoding, [made[1]] * len(pieces), strict=False) is not None
    if not options:
        with pytest.raises(ValueError, match="graph must have a node for each of 5 words of the text, got 3$"):
            align(encoding, few, strict=False)


def test_pairs_of_texts_count_their_own_words(tokenizer):
    encoding = tokenizer(*TEXTS, is_split_into_words=True, truncation=True, max_length=9)
    for sequence, words in enumerate(TEXTS):
        align(encoding, tree(words), sequence=sequence)
        with pytest.raises(ValueError, match=f"a node for each of {len(words)} words of the text, got 6"):
            align(encoding, tree(["one"] * 6), sequence=sequence)
    with pytest.raises(TypeError, match="strict must be a bool, got int"):
        align(encoding, tree(TEXTS[0]), sequence=0, strict=1)


def test_bad_input(tokenizer):
    encoding, graph = tokenizer("she walks"), rg.Graph(torch.tensor([[0], [1]]), 2)
    for given, error, message in (
        ({"encoding": {"input_ids": [1]}}, TypeError, "encoding must be that of a fast tokenizer, got dict"),
        ({"graph": 3}, TypeError, "graph must be a Graph or Labels of words, got 3"),
        ({"graph": [graph, graph]}, ValueError, "graph must be one for each of 1 texts, got 2"),
        ({"graph": rg.Graph.batch([graph, graph])}, ValueError, "graph must be of one text, got Graph"),
        ({"graph": rg.Graph(torch.zeros(2, 0, dtype=torch.long), 1)}, ValueError, "a node for each of 2 words.* got 1"),
        ({"pieces": "last"}, ValueError, "pieces"),
        ({"encoding": tokenizer("she", "walks")}, ValueError, "sequence must be 0 or 1 for a pair of texts.*got None"),
        ({"sequence": 2}, ValueError, "sequence must be .*got 2"),
        ({"spans": [(0, 3)]}, ValueError, r"spans must be integers \[N, 2\] with a row for each of 2 nodes of graph, got \[1, 2\]"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            align(**{"encoding": encoding, "graph": graph} | given)
