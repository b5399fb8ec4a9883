"""From a graph of words to the tokens of a fast tokenizer, which splits words, adds special tokens, cuts and pads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.interop.transformers.batching import batched
from relgraph.labels import DenseLabels, Labels
from relgraph.labels.naming import named_by

PIECES = ("all", "first")


def align(
    encoding: Any, graph: Any, *, pieces: str = "all", spans: Any = None, sequence: int | None = None,
    strict: bool = True,
) -> Graph | Labels:  # fmt: skip
    """Carry a graph of words, or labels of its pairs, over to the tokens of a fast tokenizer.

    A token belongs to the word that it is a piece of. A pair of tokens gets what the pair of their words has: an edge
    of the graph, or a label. Special tokens and padding belong to no word: they have no edges, and pairs with them
    attend without a label. Words that the tokenizer cut off are left out.

    A labeler may read the graph of tokens, if it only looks at edges, as :class:`~relgraph.EdgeType` does. If it looks
    farther, such as :class:`~relgraph.TreeRelation` or :class:`~relgraph.ShortestPath`, label the words first and align
    the labels: over tokens the edges no longer form a tree, because each piece of a word gets all its edges. The two
    ways differ if only pairs with an edge attend: special tokens then see nobody in a graph, and everybody in labels.

    Args:
        encoding: what a fast tokenizer gives for a text, or for several, such as
            ``tokenizer(words, is_split_into_words=True)``.
        graph: a :class:`~relgraph.Graph` whose nodes are the words, or :class:`~relgraph.Labels` of them; for several
            texts a list with one for each.
        pieces: which tokens of a word count: ``"all"``, or only the ``"first"`` one.
        spans: if nodes are not the tokenizer's words (say, tokens of a program), the characters that each node covers,
            ``[N, 2]``: its first one, and the one after its last; a token belongs to the smallest span that holds all
            of it. For several texts a list with one for each. None counts words as the tokenizer does.
        sequence: if the tokenizer got pairs of texts, which of both the graph is of, 0 or 1; None needs ``spans``,
            which then count characters of either text.
        strict: whether a graph must have as many nodes as its text has words, those included that the tokenizer cut
            off; if False, only the words that are left need nodes. Not checked with ``spans``, which may lie anywhere.

    Returns:
        A graph of the tokens, for several texts a packed batch; or labels of the tokens, one batch row per text.

    Raises:
        TypeError: an encoding of a slow tokenizer.
        ValueError: pairs of texts with neither ``sequence`` nor ``spans``, more or fewer graphs than texts, a graph
            with more or fewer nodes than the text has words, packed graphs, spans that do not fit the nodes, or another
            choice of ``pieces`` or ``sequence``.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> pieces = {piece: number for number, piece in enumerate(["[UNK]", "walk", "##s", "she"])}
        >>> tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> encoding = PreTrainedTokenizerFast(tokenizer_object=tokenizer)(["she", "walks"], is_split_into_words=True)
        >>> tree = rg.Graph.from_parents(torch.tensor([1, -1]), edge_type=torch.tensor([0, 0]))
        >>> rg.interop.transformers.align(encoding, tree).edge_index                # from both pieces of "walks"
        tensor([[1, 2],
                [0, 0]])
        >>> rg.interop.transformers.align(encoding, rg.TreeRelation()(tree)).to_dense()[0].shape
        torch.Size([1, 3, 3])
    """
    check.choice("pieces", pieces, PIECES)
    if sequence is not None:
        check.integer("sequence", sequence, minimum=0, maximum=1)
    texts = getattr(encoding, "encodings", None)
    if texts is None:
        texts = [encoding] if hasattr(encoding, "word_ids") and hasattr(encoding, "offsets") else None
    if texts is None:
        raise TypeError(f"encoding must be that of a fast tokenizer, got {type(encoding).__name__}")
    several = isinstance(graph, (list, tuple))
    graphs, places = (graph if several else [graph]), (spans if several and spans is not None else [spans] * len(texts))
    if len(graphs) != len(texts) or len(places) != len(texts):
        raise ValueError(f"graph must be one for each of {len(texts)} texts, got {len(graphs)}")
    check.boolean("strict", strict)
    numbers = getattr(encoding, "data", {}).get("overflow_to_sample_mapping", range(len(texts)))
    whole: dict[int, list[Any]] = {int(number): [] for number in numbers}
    for text, number in zip(texts, numbers, strict=True):
        whole[int(number)] += [text, *text.overflowing] if strict else []  # and what the tokenizer cut off
    wholes = [whole[int(number)] for number in numbers]
    aligned = [_aligned(*one, pieces, sequence) for one in zip(texts, graphs, places, wholes, strict=True)]
    if isinstance(aligned[0], Graph):
        return Graph.batch(aligned) if several else aligned[0]  # pyright: ignore[reportArgumentType]
    labels: list[Any] = aligned
    return batched(labels, max(one.q_len for one in labels)) if several else labels[0]


def _aligned(text: Any, graph: Any, spans: Any, whole: list[Any], pieces: str, sequence: int | None) -> Graph | Labels:
    """The graph or the labels of the tokens of one text, which is a part of the ``whole``, if its words count."""
    if not isinstance(graph, (Graph, Labels)) or getattr(graph, "num_labels", 0) is None:
        raise TypeError(f"graph must be a Graph or Labels of words, got {shown(graph)}")
    if isinstance(graph, Graph):
        nodes, packed = graph.num_nodes, graph.ptr is not None
    else:
        nodes, packed = graph.q_len, graph.packed or graph.batch_size != 1 or graph.q_len != graph.k_len
    if graph.device is not None and graph.device.type == "meta":
        raise ValueError(f"graph must hold data, got {graph!r} on the device meta")
    if packed:
        raise ValueError(f"graph must be of one text, got {graph!r}: give a list with one for each text")
    numbers = {one for one in text.sequence_ids if one is not None}
    if len(numbers) > 1 and sequence is None and spans is None:
        raise ValueError("sequence must be 0 or 1 for a pair of texts, which of both graph is of, got None")
    words = torch.tensor(list(_words(text, spans, nodes, sequence)), dtype=torch.long)  # [tokens]
    found = (one for part in whole or [text] for one in _words(part, None, nodes, sequence))
    count = nodes if spans is not None else 1 + max(found, default=-1)
    if count > nodes or (whole and count < nodes):
        more = ": strict=False leaves out nodes without a word" if count < nodes else ""
        raise ValueError(f"graph must have a node for each of {count} words of the text, got {nodes}{more}")
    if pieces == "first":
        repeated = (words[1:, None] == words[:-1]).tril().any(1)
        words[1:][repeated] = -1
    return _of_graph(graph, words) if isinstance(graph, Graph) else _of_labels(graph, words)


def _words(text: Any, spans: Any, nodes: int, sequence: int | None) -> Iterator[int]:
    """The node of each token; -1 for none."""
    holds = None if spans is None else _span_of(spans, nodes)
    own = zip(text.word_ids, text.sequence_ids, text.offsets, strict=True)
    for word, number, (start, stop) in own:
        if word is None or number is None or sequence not in (None, number):
            yield -1
        else:
            yield word if holds is None else holds(start, stop)


def _span_of(spans: Any, nodes: int) -> Any:
    """A function from the characters of a token to the node with the smallest span around them."""
    if not isinstance(spans, Tensor):
        pairs = [
            check.items("spans", pair, "pairs of integers", most=2) for pair in check.items("spans", spans, "pairs")
        ]
        spans = torch.tensor([[check.integer("spans", end) for end in pair] for pair in pairs if len(pair) == 2])
    given = spans
    if given.dim() != 2 or given.shape[1] != 2 or given.shape[0] != nodes or given.is_floating_point():
        raise ValueError(
            f"spans must be integers [N, 2] with a row for each of {nodes} nodes of graph, got {list(given.shape)}"
        )
    first, last = given.unbind(1)

    def node(start: int, stop: int) -> int:
        around = ((first <= start) & (stop <= last)).nonzero()[:, 0]
        if start == stop or around.numel() == 0:
            return -1
        return int(around[(last - first)[around].argmin()])

    return node


def _of_graph(graph: Graph, words: Tensor) -> Graph:
    """The graph of the tokens: an edge between each two tokens whose words have one."""
    tokens = (words >= 0).nonzero()[:, 0]
    source, target = ((words[tokens] == end[:, None]) for end in graph.edge_index.cpu())  # [E, T]
    edge, key, query = (source[:, :, None] & target[:, None]).nonzero(as_tuple=True)
    types: dict[str, Any] = {}
    if graph.edge_type is not None:
        types |= {"edge_type": graph.edge_type.cpu()[edge], "edge_types": graph.edge_types}
    if graph.node_type is not None:
        padded = torch.cat([graph.node_type.cpu(), torch.tensor([-1])])
        types |= {"node_type": padded[words], "node_types": graph.node_types}
    return Graph(torch.stack([tokens[key], tokens[query]]), len(words), **types).to(graph.device)


def _of_labels(labels: Labels, words: Tensor) -> Labels:
    """The labels of the tokens."""
    if not isinstance(labels.num_labels, int):
        from relgraph.labels import SumLabels

        return SumLabels(*(_of_labels(part, words) for part in labels.parts))  # pyright: ignore[reportAttributeAccessIssue]
    ids, attend = (x[0].cpu() for x in labels.to_dense())
    outside = words < 0
    neither = outside[:, None] | outside
    where = words.clamp(min=0)
    if ids.numel() == 0:
        ids, attend, where = ids.new_full((1, 1), -1), attend.new_ones(1, 1), torch.zeros_like(words)
    ids = torch.where(neither, -1, ids[where[:, None], where])
    made = DenseLabels(ids, labels.num_labels, attend=neither | attend[where[:, None], where])
    return named_by(labels._named, made if labels.device is None else made.to(labels.device))
