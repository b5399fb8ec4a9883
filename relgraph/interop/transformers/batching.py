"""Labels of several texts as labels of a padded batch, and the collator that makes them for Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.interop.transformers.relation import LABELS
from relgraph.labels import DenseLabels, EdgeLabels, Labels, SumLabels, padded
from relgraph.labels.naming import named_by
from relgraph.nn.made_labels import labels_of

SIDES = ("right", "left")
ALIGN = "pass rg.interop.transformers.align"


class RelationCollator:
    """Batch the column ``relation_labels`` for ``Trainer``, and everything else by a collator of transformers.

    ``Trainer`` keeps the column, because it is an argument of a model with relations. The labels of a text cover its
    tokens, special tokens included. In a batch they are padded as the tokens are: pairs with padding attend without a
    label, and the mask of the model hides them.

    Args:
        collator: what batches the other columns, such as ``DataCollatorWithPadding(tokenizer)``.
        labeler: makes the labels of a text from its entry of the column; None if entries are
            :class:`~relgraph.Labels`.
        padding_side: ``"right"`` or ``"left"``; by default that of ``collator.tokenizer``.

    Raises:
        ValueError: an unknown side.

    Example:
        >>> from transformers import default_data_collator
        >>> collator = rg.interop.transformers.RelationCollator(default_data_collator, rg.EdgeType(1, attend="all"))
        >>> graph = rg.Graph(torch.tensor([[0], [2]]), 3, edge_type=torch.tensor([0]))
        >>> batch = collator([{"input_ids": [5, 6, 7], "relation_labels": graph}])
        >>> batch["input_ids"].shape, batch["relation_labels"]
        (torch.Size([1, 3]), EdgeLabels(q_len=3, k_len=3, num_labels=1, edges=1, default=-1))
    """

    def __init__(
        self,
        collator: Callable[[list[dict[str, Any]]], Any],
        labeler: Callable[[Any], Labels] | None = None,
        padding_side: str | None = None,
    ) -> None:
        for name, value in (("collator", collator), ("labeler", labeler)):
            if isinstance(value, type) or not (callable(value) or (name == "labeler" and value is None)):
                raise TypeError(f"{name} must be callable, and no class, got {shown(value)}")
        side = getattr(getattr(collator, "tokenizer", None), "padding_side", "right")
        self.collator, self.labeler = collator, labeler
        self.padding_side = side if padding_side is None else check.choice("padding_side", padding_side, SIDES)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Make a batch.

        Args:
            features: one mapping for each text, with ``input_ids`` and ``relation_labels``.

        Returns:
            The batch of the collator, with ``relation_labels``.

        Raises:
            TypeError: an entry of the column that is neither Labels nor what the labeler reads.
            ValueError: no texts, a text without the column, labels that cannot be in one batch, or labels of more or
                fewer rows than their text has tokens.
        """
        features = check.items("features", features, "a list of mappings")
        if not features:
            raise ValueError("features must hold at least one text, got none")
        for feature in features:
            if not isinstance(feature, Mapping):
                raise TypeError(f"features must be a list of mappings, got one with {type(feature).__name__}")
            if feature.get(LABELS) is None:
                raise ValueError(
                    f"features must have the column {LABELS!r}, got {', '.join(feature)}: Trainer drops columns that "
                    "the model does not take; give add_relations the model that Trainer gets"
                )
        given = [feature[LABELS] for feature in features]
        batch = self.collator([{k: v for k, v in feature.items() if k != LABELS} for feature in features])
        made = [one if isinstance(one, Labels) else self._labels(one) for one in given]
        length, mask = batch["input_ids"].shape[1], batch.get("attention_mask")
        if mask is None and all("input_ids" in feature for feature in features):
            seen = [[1] * min(len(feature["input_ids"]), length) for feature in features]
            rest = [[0] * (length - len(one)) for one in seen]
            mask = [a + b if self.padding_side == "right" else b + a for a, b in zip(seen, rest, strict=True)]
        check_sizes(
            [one.q_len for one in made], None if mask is None else torch.as_tensor(mask), length, self.padding_side
        )
        batch[LABELS] = batched(made, length, self.padding_side)
        return batch

    def _labels(self, given: Any) -> Labels:
        if self.labeler is None:
            raise TypeError(f"{LABELS} must be Labels, as there is no labeler, got {type(given).__name__}")
        return labels_of_tokens(self.labeler, given)


def labels_of_tokens(labeler: Any, given: Any) -> Labels:
    """The labels that a labeler makes from what a model or a collator got; errors name ``align``."""
    try:
        return labels_of(labeler, given, LABELS)
    except TypeError as error:
        for kind, name in ((Graph, "graphs"), (Labels, "labels")):
            if isinstance(given, (list, tuple)) and given and all(isinstance(one, kind) for one in given):
                tokens = ", or rg.Graph.batch(graphs) if their nodes are tokens" if kind is Graph else ""
                raise TypeError(
                    f"{LABELS} must be Labels, or what {shown(labeler)} reads, got a {type(given).__name__} of {name}: "
                    f"{ALIGN}(encoding, {name}){tokens}"
                ) from error
        raise
    except ValueError as error:
        if not str(error).startswith("graph must be a tree"):
            raise
        raise ValueError(
            f"{error}: tokens of one word share its edges, so label the words and align the labels, "
            "align(encoding, [labeler(g) for g in graphs])"
        ) from error


def check_sizes(sizes: Sequence[int], mask: Any, length: int, side: str = "right") -> None:
    """Raise ValueError unless each of several labels covers all tokens of its text, with padding or without.

    ``mask`` is that of the model, ``[B, length]``, or None if there is no padding; ``side`` is where labels are padded.
    """
    if all(size == length for size in sizes):
        return
    alternative = "" if mask is not None else "; if the texts are padded, pass attention_mask"
    if mask is None:
        mask = torch.ones(len(sizes), length)
    if not isinstance(mask, Tensor) or list(mask.shape) != [len(sizes), length]:
        return
    seen = mask.bool()
    for row, (size, tokens) in enumerate(zip(sizes, seen.sum(1).tolist(), strict=True)):
        place = slice(0, size) if side == "right" else slice(length - size, length)
        if size == length or (size == tokens and bool(seen[row, place].all())):
            continue
        hint = f"if nodes are words, {ALIGN}(encoding, graphs){alternative}"
        if size == tokens:
            hint = f"they are padded on the {side}, but the text is not: label all {length} tokens, padding included"
        raise ValueError(f"{LABELS} must have a node for each of {tokens} tokens of text {row}, got {size}: {hint}")


def batched(several: Sequence[Labels], length: int, side: str = "right") -> Labels:
    """Labels of a padded batch from those of each row, which may be shorter than ``length``.

    Edges stay edges and a sum stays a sum; others become dense. Pairs with padding attend without a label if others do.
    """
    first = several[0]
    for one in several:
        if one.packed or one.batch_size != 1 or one.q_len != one.k_len:
            raise ValueError(f"{LABELS} must be those of one text, as many queries as keys, got {one!r}")
        if one.q_len > length:
            raise ValueError(f"{LABELS} must be those of at most {length} tokens, got {one!r}: cut them as the tokens")
        if one.num_labels != first.num_labels:
            raise ValueError(f"{LABELS} must have equal num_labels, got {first!r} and {one!r}")
    if isinstance(first, SumLabels):
        parts: list[Any] = [one.parts for one in several]  # pyright: ignore[reportAttributeAccessIssue]
        return SumLabels(*(batched(part, length, side) for part in zip(*parts, strict=True)))
    starts = [length - one.q_len if side == "left" else 0 for one in several]
    edges = [one for one in several if isinstance(one, EdgeLabels) and not isinstance(one.default, Labels)]
    alike = len(edges) == len(several) and len({(one.default, one.duplicates) for one in edges}) == 1
    return named_by(first._named, _of_edges(edges, starts, length) if alike else _of_pairs(several, starts, length))


def _of_edges(several: Sequence[EdgeLabels], starts: Sequence[int], length: int) -> EdgeLabels:
    first = several[0]
    rows = torch.repeat_interleave(torch.tensor([one.ids.shape[0] for one in several], device=first.device))
    return EdgeLabels(
        torch.cat([one.edge_index + start for one, start in zip(several, starts, strict=True)], 1),
        torch.cat([one.ids for one in several]), first.num_labels, q_len=length, default=first.default,
        duplicates=first.duplicates, batch=rows, batch_size=len(several),
    )  # fmt: skip


def _of_pairs(several: Sequence[Labels], starts: Sequence[int], length: int) -> DenseLabels:
    where = next((one.device for one in several if one.device is not None), None)
    ids = torch.full((len(several), length, length), -1, dtype=torch.int32, device=where)
    attend = torch.ones(ids.shape, dtype=torch.bool, device=where)
    for row, (one, start) in enumerate(zip(several, starts, strict=True)):
        part = slice(start, start + one.q_len)
        written: list[Tensor] = [x[0] for x in one.to_dense()]
        ids[row, part, part], attend[row, part, part] = written[0].to(ids.dtype), written[1]
    return DenseLabels(ids, int(several[0].num_labels), attend=attend)  # pyright: ignore[reportArgumentType]


def repeated(labels: Labels, times: int) -> Labels:
    """Labels with each batch row several times, as beams need them."""
    if times == 1 or (labels.batch_size == 1 and not labels.packed):
        return labels
    rows = padded(labels) if labels.packed else labels
    several = [rows._batch_rows(row, row + 1) for row in range(rows.batch_size) for _ in range(times)]
    return batched(several, rows.q_len)
