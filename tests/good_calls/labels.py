"""Good calls of ``relgraph.labels``."""

from __future__ import annotations

import torch

import relgraph as rg
from tests.cases import KINDS
from tests.judge import Good

PTR = torch.tensor([0, 2, 3])


def _dense() -> rg.DenseLabels:
    return rg.DenseLabels(torch.tensor([[0, 1, 1], [1, 0, -1], [0, 0, 1]]), 2)


def _edges(**options) -> rg.EdgeLabels:
    return rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 2, q_len=3, **options)


def _blocks() -> rg.BlockLabels:
    return rg.BlockLabels(torch.tensor([0, 1, 1, 0, 1]), 2, PTR)


def _sum() -> rg.SumLabels:
    return rg.SumLabels(rg.ClippedDistance(1)(3), _dense())


def _rows(labels: rg.Labels) -> Good:
    return Good(labels.rows, {"start": 1, "stop": 2})


def _cols(labels: rg.Labels) -> Good:
    return Good(labels.cols, {"start": 1, "stop": 2})


GOOD_CALLS = {
    "DistanceLabels": lambda: Good(
        rg.DistanceLabels,
        {"q_len": 4, "k_len": 5, "lookup": [0, 1, 2], "left": 1, "num_labels": 3, "q_offset": 1},
        also={"lookup": ("left",), "num_labels": ("lookup",)},
    ),
    "DistanceLabels (packed)": lambda: Good(
        rg.DistanceLabels,
        {
            "q_len": 2,
            "k_len": 3,
            "lookup": (0, 1, 2),
            "left": 1,
            "ptr": PTR,
            "q_ptr": torch.tensor([0, 1, 2]),
            "q_offset": torch.tensor([1, 0]),
        },
        also={"q_len": ("q_ptr",), "k_len": ("ptr",), "lookup": ("left",), "ptr": ("q_ptr",)},
    ),
    "DistanceLabels.rows": lambda: _rows(rg.ClippedDistance(1)(3)),
    "DistanceLabels.cols": lambda: _cols(rg.ClippedDistance(1)(3)),
    "DistanceLabels.rows (packed)": lambda: _rows(rg.ClippedDistance(1)(3, ptr=PTR)),
    "DistanceLabels.cols (packed)": lambda: _cols(rg.ClippedDistance(1)(3, ptr=PTR)),
    "DenseLabels": lambda: Good(
        rg.DenseLabels,
        {
            "ids": torch.tensor([[0, 1], [1, -1]]),
            "num_labels": 2,
            "attend": torch.tensor([[True, True], [True, False]]),
        },
        also={"num_labels": ("ids",), "ids": ("attend",)},
    ),
    "DenseLabels.rows": lambda: _rows(_dense()),
    "DenseLabels.cols": lambda: _cols(_dense()),
    "BlockLabels": lambda: Good(
        rg.BlockLabels,
        {
            "ids": torch.tensor([0, 1, 1, 0, 1]),
            "num_labels": 2,
            "ptr": PTR,
            "q_ptr": PTR.clone(),
            "attend": torch.tensor([True, True, False, True, True]),
            "lengths": (3, 3),
        },
        also={
            "num_labels": ("ids",),
            "ids": ("attend",),
            "ptr": ("ids", "q_ptr"),
            "q_ptr": ("ids",),
            "lengths": ("ptr", "q_ptr"),
        },
    ),
    "BlockLabels (lengths left out)": lambda: Good(
        rg.BlockLabels,
        {"ids": torch.tensor([0, 1, 1, 0, 1]), "num_labels": 2, "ptr": PTR, "q_ptr": PTR.clone()},
        also={"num_labels": ("ids",), "ptr": ("ids", "q_ptr"), "q_ptr": ("ids", "ptr")},
    ),
    "BlockLabels.from_blocks": lambda: Good(
        rg.BlockLabels.from_blocks,
        {"blocks": [torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1]])], "num_labels": 2},
        also={"blocks": ("ids",), "num_labels": ("ids",)},
    ),
    "BlockLabels.rows": lambda: _rows(_blocks()),
    "BlockLabels.cols": lambda: _cols(_blocks()),
    "FunctionLabels.rows": lambda: _rows(KINDS["function"](3)),
    "FunctionLabels.cols": lambda: _cols(KINDS["function packed"](3)),
    "EdgeLabels": lambda: Good(
        rg.EdgeLabels,
        {
            "edge_index": torch.tensor([[0, 1], [1, 2]]),
            "ids": torch.tensor([0, 1]),
            "num_labels": 3,
            "q_len": 3,
            "k_len": 4,
            "default": 2,
            "duplicates": "first",
        },
        also={
            "edge_index": ("ids",),
            "ids": ("edge_index",),
            "num_labels": ("ids", "default"),
            "q_len": ("edge_index",),
            "k_len": ("edge_index",),
        },
        accepts={"default": ("minus one", "zero")},
    ),
    "EdgeLabels (packed)": lambda: Good(
        rg.EdgeLabels,
        {
            "edge_index": torch.tensor([[0, 1], [1, 0]]),
            "ids": torch.tensor([0, 1]),
            "num_labels": 3,
            "q_len": 3,
            "default": rg.ClippedDistance(1)(3, ptr=PTR),
            "ptr": PTR,
            "q_ptr": PTR.clone(),
        },
        also={
            "edge_index": ("ids", "duplicates"),
            "ids": ("edge_index",),
            "num_labels": ("ids", "default"),
            "q_len": ("edge_index", "ptr", "q_ptr", "default"),
            "ptr": ("q_ptr", "default", "edge_index"),
            "q_ptr": ("ptr", "default", "edge_index"),
        },
        accepts={"default": ("number",)},
    ),
    "EdgeLabels (batch)": lambda: Good(
        rg.EdgeLabels,
        {
            "edge_index": torch.tensor([[0, 1], [1, 0]]),
            "ids": torch.tensor([0, 1]),
            "num_labels": 3,
            "q_len": 3,
            "batch": torch.tensor([0, 1]),
            "batch_size": 2,
        },
        also={
            "edge_index": ("ids",),
            "ids": ("edge_index",),
            "num_labels": ("ids",),
            "q_len": ("edge_index",),
            "batch_size": ("batch",),
            "batch": ("batch_size",),
        },
    ),
    "EdgeLabels.rows": lambda: _rows(_edges()),
    "EdgeLabels.cols": lambda: _cols(_edges()),
    "EdgeLabels.rows (default)": lambda: _rows(_edges(default=rg.ClippedDistance(0)(3))),
    "EdgeLabels.cols (default)": lambda: _cols(_edges(default=rg.ClippedDistance(0)(3))),
    "SumLabels": lambda: Good(
        lambda first, second: rg.SumLabels(first, second),
        {"first": rg.ClippedDistance(1)(3), "second": _dense()},
        also={"first": ("parts", "part"), "second": ("parts", "part")},
    ),
    "SumLabels.rows": lambda: _rows(_sum()),
    "SumLabels.cols": lambda: _cols(_sum()),
    "Labels.__getitem__": lambda: Good(
        lambda rows: _dense()[rows], {"rows": slice(0, 2)}, also={"rows": ("slice of query rows",)}
    ),
    "Labels.to": lambda: Good(_dense().to, {"device": torch.device("cpu"), "non_blocking": False}),
    "Labels.to (distances)": lambda: Good(
        rg.ClippedDistance(1)(3).to, {"device": torch.device("cpu"), "non_blocking": False}
    ),
    "Labels.to (sum)": lambda: Good(_sum().to, {"device": torch.device("cpu"), "non_blocking": False}),
    "Labels.describe": lambda: Good(
        _dense().describe, {"names": ["a", "b"]}, accepts={"names": ("first entry: text",)}
    ),
    "Labels.describe (sum)": lambda: Good(
        _sum().describe,
        {"names": [["-1", "0", "1"], ["a", "b"]]},
        accepts={"names": ("first entry: first entry: text",)},
    ),
    "padded": lambda: Good(
        rg.labels.padded, {"labels": rg.ClippedDistance(1)(3, ptr=PTR), "length": 4}, also={"labels": ("length",)}
    ),
    "padded (edges)": lambda: Good(
        rg.labels.padded,
        {"labels": rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 1, q_len=3, ptr=PTR), "length": 4},
        also={"labels": ("length",)},
    ),
    "padded (blocks)": lambda: Good(rg.labels.padded, {"labels": _blocks(), "length": 4}, also={"labels": ("length",)}),
}
