"""Good calls of ``relgraph.labelers``."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

import relgraph as rg
from relgraph.labelers import Dense, Priority, Product, Restriction, Sum
from tests.good_calls.graphs import PTR, graph
from tests.judge import Good
from tests.labelers.test_graph_conformance import SUBJECTS

OPERAND = {"other": ("operand",)}
WORDS = ("first entry: text",)  # any word is a name
PARTS = {"first": ("operand", "parts", "part"), "second": ("operand", "parts", "part")}
PAIRS = {"first": ("labels", "parts", "part"), "second": ("labels", "parts", "part")}


def _before(i, j):
    return (j < i).long()


def _cells() -> dict:
    return {
        "rows": torch.tensor([0, 1, 1, 2]),
        "columns": torch.tensor([0, 1, 2, 1]),
        "parents": torch.tensor([[1, 2], [0, 0]]),
        "times": torch.tensor([0.0, 2.0, 1.0]),
        "until": 1.0,
    }


def _of_two(call) -> Good:
    """A callable of several things, spoiled in two places."""
    return Good(
        lambda first, second: call(first, second), {"first": rg.Window(2), "second": rg.ClippedDistance(1)}, PARTS
    )


def _of_labels(call) -> Good:
    dense = rg.DenseLabels(torch.tensor([[0, 1, 1], [1, 0, -1], [0, 0, 1]]), 2)
    also = {**PAIRS, "labels": (), "mask": ("labels",)}
    if call is rg.labels.restrict:
        return Good(call, {"labels": rg.ClippedDistance(1)(3), "mask": dense}, also)
    return Good(lambda first, second: call(first, second), {"first": rg.ClippedDistance(1)(3), "second": dense}, also)


def _of_graph(labeler) -> Good:
    return Good(labeler, {"graph": graph()}, also={"graph": ("edge_type", "node_type", "duplicates")})


def _schema() -> dict:
    return {
        "question": ["which", "singer", "is", "20"],
        "columns": [(0, ["singer", "id"]), (None, ["*"]), (0, ["age"])],
        "tables": [["singer"]],
        "primary_keys": [0],
        "foreign_keys": [(2, 0)],
        "values": [(3, 2, "NUMBER")],
    }


def _mapped(call) -> Good:
    """A callable with positional arguments that go on to a labeler."""
    return Good(lambda q_len: call(q_len), {"q_len": 3})


GOOD_CALLS = {
    # The algebra
    "Product": lambda: _of_two(Product),
    "Sum": lambda: _of_two(Sum),
    "Priority": lambda: _of_two(Priority),
    "Restriction": lambda: _of_two(Restriction),
    "Dense": lambda: Good(Dense, {"labeler": rg.Window(1)}, also={"labeler": ("operand",)}),
    "Product.__call__": lambda: _mapped(rg.Window(1) * rg.ClippedDistance(1)),
    "Sum.__call__": lambda: _mapped(rg.Window(1) + rg.ClippedDistance(1)),
    "Priority.__call__": lambda: _mapped(rg.Window(1) | rg.ClippedDistance(1)),
    "Restriction.__call__": lambda: _mapped(rg.ClippedDistance(1) & rg.Window(1)),
    "Dense.__call__": lambda: _mapped(rg.ClippedDistance(1).dense()),
    "Labeler.__mul__": lambda: Good(lambda other: rg.Window(1) * other, {"other": rg.Window(2)}, OPERAND),
    "Labeler.__add__": lambda: Good(lambda other: rg.Window(1) + other, {"other": rg.Window(2)}, OPERAND),
    "Labeler.__or__": lambda: Good(lambda other: rg.Window(1) | other, {"other": rg.Window(2)}, OPERAND),
    "Labeler.__and__": lambda: Good(lambda other: rg.Window(1) & other, {"other": rg.Window(2)}, OPERAND),
    "Labeler.describe": lambda: Good(lambda q_len: rg.ClippedDistance(1).describe(q_len), {"q_len": 3}),
    "Labeler.describe (a graph)": lambda: Good(
        lambda graph: rg.EdgeType(2, attend="all", default="none").describe(graph),
        {"graph": graph()},
        also={"graph": ("edge_type", "duplicates", "labels")},
    ),
    "product": lambda: _of_labels(rg.labels.product),
    "total": lambda: _of_labels(rg.labels.total),
    "first_of": lambda: _of_labels(rg.labels.first_of),
    "restrict": lambda: _of_labels(rg.labels.restrict),
    # Sequences and grids
    "ClippedDistance": lambda: Good(rg.ClippedDistance, {"clip": (2, 1)}),
    "BucketedDistance": lambda: Good(
        rg.BucketedDistance,
        {"num_buckets": 8, "max_distance": 20, "bidirectional": True, "rule": "t5"},
        also={"num_buckets": ("max_distance",), "rule": ("num_buckets", "max_distance")},
    ),
    "Window": lambda: Good(rg.Window, {"left": 2, "right": 1}),
    "DistanceLabeler.__call__": lambda: Good(rg.ClippedDistance(1), {"q_len": 3, "k_len": 4, "q_offset": 1}),
    "DistanceLabeler.__call__ (packed)": lambda: Good(
        rg.ClippedDistance(1),
        {"q_len": 3, "ptr": PTR, "q_ptr": PTR.clone(), "q_offset": torch.tensor([0, 1])},
        also={"q_len": ("ptr", "q_ptr", "k_len"), "ptr": ("q_ptr",), "q_ptr": ("ptr",)},
    ),
    "DistanceLabeler.__call__ (graph)": lambda: Good(
        lambda graph: rg.ClippedDistance(1)(graph),
        {"graph": graph()},
        also={"graph": ("q_len",)},
        accepts={"graph": ("number",)},
    ),
    "Segments": lambda: Good(rg.Segments, {"num_segments": 2}),
    "Segments.__call__": lambda: Good(
        rg.Segments(2),
        {"segments": torch.tensor([[0, 1, -1], [0, 0, 0]]), "k_segments": torch.tensor([[1, 0], [1, 1]])},
        also={"segments": ("k_segments",)},
    ),
    "Grid": lambda: Good(rg.Grid, {"clip": (1, 2), "extra_tokens": 1, "beyond": "clip"}),
    "Grid.__call__": lambda: Good(rg.Grid(1), {"height": 2, "width": 3}),
    "GridRows": lambda: Good(rg.labelers.GridRows, {"clip": 1}),
    "GridRows.__call__": lambda: Good(rg.labelers.GridRows(1), {"height": 2, "width": 3}),
    "GridColumns": lambda: Good(rg.labelers.GridColumns, {"clip": 1}),
    "GridColumns.__call__": lambda: Good(rg.labelers.GridColumns(1), {"height": 2, "width": 3}),
    "FromFunction": lambda: Good(
        rg.FromFunction,
        {"fn": _before, "num_labels": 2, "names": ["after", "before"]},
        also={"num_labels": ("names",)},
        accepts={"names": WORDS},
    ),
    "FromFunction.__call__": lambda: Good(rg.FromFunction(_before, 2), {"q_len": 3, "k_len": 4, "q_offset": 1}),
    "FromFunction.__call__ (what fn gives)": lambda: Good(
        lambda returned: rg.FromFunction(lambda i, j: returned, 2)(3),
        {"returned": torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]])},
        also={"returned": ("fn",)},
    ),
    # Graphs
    "EdgeType": lambda: Good(
        rg.EdgeType,
        {
            "types": ["bond", "hop"],
            "inverse": False,
            "self_loop": False,
            "attend": "all",
            "default": "none",
            "duplicates": "first",
        },
        accepts={"types": WORDS},
    ),
    "EdgeType (a number)": lambda: Good(rg.EdgeType, {"types": 2}),
    "EdgeType.__call__": lambda: _of_graph(rg.EdgeType(2, inverse=True, self_loop=True)),
    "NodeType": lambda: Good(rg.NodeType, {"types": ["C", "N"]}, accepts={"types": WORDS}),
    "NodeType (a number)": lambda: Good(rg.NodeType, {"types": 2}),
    "NodeType.__call__": lambda: _of_graph(rg.NodeType(2)),
    "ShortestPath": lambda: Good(rg.ShortestPath, {"clip": 2, "directed": False, "unreachable": "label"}),
    "ShortestPath.__call__": lambda: _of_graph(rg.ShortestPath(2)),
    "shortest_path_lengths": lambda: Good(
        rg.labelers.shortest_path_lengths, {"graph": graph(), "max_distance": 2, "directed": False}
    ),
    "label_pairs": lambda: Good(
        rg.labelers.label_pairs,
        {
            "graph": graph(),
            "ids": torch.tensor([0, 1, -1] * 3),
            "num_labels": 2,
            "attend": torch.tensor([True, False, True] * 3),
        },
        also={"graph": ("ids",), "ids": ("attend",), "num_labels": ("ids",)},
    ),
    "label_pairs (a matrix)": lambda: Good(
        rg.labelers.label_pairs,
        {"graph": graph(), "ids": torch.eye(3, dtype=torch.int64), "num_labels": 2},
        also={"graph": ("ids",), "num_labels": ("ids",)},
    ),
    # Trees
    "TreeRelation": lambda: Good(
        rg.TreeRelation, {"kinds": ("parent", "child"), "default": "other", "forest": False}, also={"kinds": ("kind",)}
    ),
    "TreeRelation.__call__": lambda: _of_graph(rg.TreeRelation()),
    "UpDown": lambda: Good(rg.UpDown, {"clip": (2, 1), "forest": False}),
    "UpDown.__call__": lambda: _of_graph(rg.UpDown(2)),
    "dependency_relations": lambda: Good(
        rg.labelers.dependency_relations,
        {"relations": ["nsubj", "obj"], "self_loop": False, "attend": "all", "default": "unlabeled"},
        accepts={"relations": WORDS},
    ),
    # Code and databases
    "CodeRelations": lambda: Good(rg.CodeRelations, {"attend": "all", "default": "unlabeled", "duplicates": "sum"}),
    "CodeRelations.__call__": lambda: _of_graph(rg.CodeRelations()),
    "Schema": lambda: Good(
        rg.labelers.Schema,
        _schema(),
        also={"question": ("values",), "columns": ("primary_keys", "foreign_keys", "values"), "tables": ("columns",)},
        accepts={"question": WORDS, "tables": ("first entry: first entry: text",)},
    ),
    "SchemaRelations": lambda: Good(
        rg.labelers.SchemaRelations, {"clip": 2, "spelled": False, "stopwords": ["the"]}, accepts={"stopwords": WORDS}
    ),
    "SchemaRelations.__call__": lambda: Good(
        rg.labelers.SchemaRelations(), {"schemas": [rg.labelers.Schema(**_schema())] * 2}
    ),
    "Cells": lambda: Good(
        rg.labelers.Cells, _cells(), also={"rows": ("times",), "parents": ("times",), "times": ("until",)}
    ),
    "CellRelations": lambda: Good(rg.labelers.CellRelations, {"time": True, "attend": "all"}),
    "CellRelations.__call__": lambda: Good(rg.labelers.CellRelations(), {"cells": [rg.labelers.Cells(**_cells())] * 2}),
    # Whole paths
    "ShortestPathTypes": lambda: Good(
        rg.labelers.ShortestPathTypes, {"max_length": 2, "num_types": 2, "directed": False}
    ),
    "ShortestPathTypes.__call__": lambda: _of_graph(rg.labelers.ShortestPathTypes(2, 2)),
    "ShortestPathTypes.describe": lambda: _of_graph(rg.labelers.ShortestPathTypes(2, 2).describe),
    "TreePaths": lambda: Good(rg.labelers.TreePaths, {"max_length": 2, "num_types": 2, "forest": False}),
    "TreePaths.__call__": lambda: _of_graph(rg.labelers.TreePaths(2, 2)),
    "TreePaths.describe": lambda: _of_graph(rg.labelers.TreePaths(2, 2).describe),
}


BY_DISTANCE = (rg.ClippedDistance(1), rg.BucketedDistance(8, 20), rg.Window(1))
ON_GRIDS = (rg.Grid(1), rg.labelers.GridRows(1), rg.labelers.GridColumns(1))
COMPOSED = (
    rg.ClippedDistance(1) * rg.Window(1),
    rg.ClippedDistance(1) + rg.Window(1),
    rg.Window(1) | rg.ClippedDistance(1),
    rg.ClippedDistance(1) & rg.Window(1),
)


def _at(labeler: rg.Labeler, positions: torch.Tensor) -> Good:
    return Good(
        labeler.at,  # pyright: ignore[reportAttributeAccessIssue]
        {"q_positions": positions, "k_positions": positions + 1},
        also={"q_positions": ("k_positions",)},
    )


def _rows_from(labeler: rg.Labeler) -> Good:
    rows = torch.randn(labeler.num_labels, 2)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return Good(
        labeler.rows_from,  # pyright: ignore[reportAttributeAccessIssue]
        {"table": rows, "order": "query-key", "dim": 0},
        also={"table": ("dim",), "dim": ("table",)},
    )


def _add_rows_of_positions() -> None:
    """Labels at positions and rows of tables, for each class of labeler that has them."""
    positions = torch.tensor([[0, 3, 1], [2, 2, 7]])
    GOOD_CALLS["DistanceLabeler.at"] = partial(_at, rg.ClippedDistance(1), positions)
    for labeler in (*ON_GRIDS, *COMPOSED):
        where = positions if labeler in COMPOSED else positions[..., None].expand(2, 3, 2)
        GOOD_CALLS[f"{type(labeler).__name__}.at"] = partial(_at, labeler, where)
    GOOD_CALLS["DistanceLabeler.rows_from"] = partial(_rows_from, rg.ClippedDistance(1))
    for labeler in (*BY_DISTANCE, *ON_GRIDS):
        GOOD_CALLS[f"{type(labeler).__name__}.rows_from"] = partial(_rows_from, labeler)


def _add_rows_of_conformance() -> None:
    """A labeler of graphs without a row above gets one from the conformance tests: its own fields, and a graph."""
    of_graphs = [s.labeler for s in SUBJECTS if type(s.labeler).__module__.startswith("relgraph.labelers.graph.")]
    for labeler in filter(dataclasses.is_dataclass, of_graphs):
        name, given = type(labeler).__name__, {f.name: getattr(labeler, f.name) for f in dataclasses.fields(labeler)}
        GOOD_CALLS.setdefault(name, partial(Good, type(labeler), given))
        GOOD_CALLS.setdefault(f"{name}.__call__", partial(_of_graph, labeler))


_add_rows_of_conformance()
_add_rows_of_positions()
