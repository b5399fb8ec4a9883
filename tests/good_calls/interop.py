"""Good calls of ``relgraph.interop``: checkpoints, networkx graphs, treebanks and Python source."""

from __future__ import annotations

import atexit
import io
import shutil
import tempfile
from functools import cache

import networkx as nx
import pandas as pd
import torch

import relgraph as rg
from relgraph.interop import checkpoints, conllu, networkx, pandas, python
from tests.good_calls.graphs import graph
from tests.judge import Good

TREE = "1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_\n2\ton\ton\tADP\t_\t_\t1\tadvmod\t_\t_\n"
RELATIONS = {"relations": ["root", "advmod"], "tags": ["VERB", "ADP"]}
WORDS = ("first entry: text",)
ANY_NAME = ("object", "text", "a class", "complex", "number", "bytes", "true")
HASHABLE = tuple(f"first entry: {name}" for name in ANY_NAME)
"""What networkx takes for a node, and what may name a type."""


def _but(error: type[Exception], call, accepts: tuple[str, ...] = (), **arguments) -> Good:
    """A call that may also raise a built-in error of its own kind, as its docstring says."""

    def told(**given):
        try:
            return call(**given)
        except error as raised:
            raise ValueError(f"{', '.join(arguments)}: {raised}") from None

    return Good(told, arguments, accepts=dict.fromkeys(arguments, accepts))


def _theirs(kind=nx.DiGraph):
    made = kind()
    made.add_node("a", sort="x", size=1.5, home=0)
    made.add_node("b", sort="y", size=2, home=1)
    made.add_edge("a", "a", sort="up", weight=3)
    return made


def _holding(name: str, value, accepts: tuple[str, ...], **options) -> Good:
    """A graph that is good but for one attribute of an edge."""

    def call(**given):
        made = nx.DiGraph()
        made.add_edge("a", "b", **given)
        return networkx.from_networkx(made, **options)

    return Good(call, {name: value}, also={name: tuple(options)}, accepts={name: accepts})


def _at_home(number) -> Good:
    """A graph whose nodes say which graph they are in."""

    def call(home):
        made = nx.DiGraph()
        made.add_node("a", home=0)
        made.add_node("b", home=home)
        return networkx.from_networkx(made, batch="home")

    return Good(call, {"home": number})


def _counted(number) -> Good:
    def call(num_graphs):
        made = nx.DiGraph(num_graphs=num_graphs)
        made.add_node("a", home=0)
        return networkx.from_networkx(made, batch="home")

    return Good(call, {"num_graphs": number})


def _linears(*names: str, out: int = 4, width: int = 4) -> dict[str, torch.Tensor]:
    """Weights and biases of these names."""
    weights = {f"{name}.weight": torch.randn(out, width) for name in names}
    return weights | {f"{name}.bias": torch.randn(out) for name in names}


def _from(reader, state: dict[str, torch.Tensor], **options) -> Good:
    """A reader of checkpoints, which takes arrays in place of tensors."""
    state = {f"at.{name}": tensor for name, tensor in {**state, "other": torch.zeros(1)}.items()}
    return Good(
        reader,
        {"state": state, "prefix": "at.", "leave_out": ["other*"], "dropout": 0.1, **options},
        also={"state": ("left", "labeler")},  # a table of another size
        accepts={"state": tuple(f"entry {name!r}: numpy" for name in state) + NOT_READ},
    )


NOT_READ = tuple(
    f"entry 'at.other': {name}"
    for name in (
        *("object", "text", "numpy array", "a class", "complex", "list", "tuple"),
        *("sparse", "sparse rows", "nested", "jagged", "quantized", "mkldnn"),
    )
)
"""What may come where nothing is read."""


def _rat_sql() -> dict[str, torch.Tensor]:
    found = _linears(*(f"layers.0.self_attn.linears.{number}" for number in range(4)))
    found |= _linears("layers.0.feed_forward.w_1", out=6) | _linears("layers.0.feed_forward.w_2", width=6)
    for name in ("layers.0.sublayer.0.norm", "layers.0.sublayer.1.norm", "norm"):
        found |= {f"{name}.weight": torch.ones(4), f"{name}.bias": torch.zeros(4)}
    return found | {f"layers.0.relation_{kind}_emb.weight": torch.randn(51, 2) for kind in "kv"}


def _graphormer() -> dict[str, torch.Tensor]:
    found = _linears(*(f"layers.0.self_attn.{name}_proj" for name in ("q", "k", "v", "out")))
    found |= _linears("layers.0.fc1", out=6) | _linears("layers.0.fc2", width=6)
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        found |= {f"layers.0.{name}.weight": torch.ones(4), f"layers.0.{name}.bias": torch.zeros(4)}
    biases = {"spatial_pos_encoder": (9, 2), "graph_token_virtual_distance": (1, 2)}
    biases |= {"edge_encoder": (9, 2), "edge_dis_encoder": (12, 1)}
    return found | {f"graph_attn_bias.{name}.weight": torch.zeros(*size) for name, size in biases.items()}


@cache
def _saved() -> str:
    """A file of torch with a state dict within."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    torch.save({"model": {"weight": torch.ones(2)}}, f"{folder}/last.pt")
    return f"{folder}/last.pt"


def _tables() -> dict:
    days = pd.to_datetime(["2020-05-01", "2020-06-01"])
    return {
        "tables": {
            "races": pd.DataFrame({"race": [7, 8], "day": days}),
            "results": pd.DataFrame({"race": [7, 8], "points": [10.0, 6.0]}),
        },
        "primary_keys": {"races": "race"},
        "foreign_keys": {("results", "race"): "races"},
        "times": {"races": "day"},
        "most_categories": 5,
        "text_codes": 7,
    }


GOOD_CALLS = {
    "checkpoints.read": lambda: Good(checkpoints.read, {"path": _saved(), "key": "model"}, also={"key": ("path",)}),
    "checkpoints.from_tensor2tensor": lambda: _from(
        checkpoints.from_tensor2tensor,
        {f"{name}/kernel": torch.randn(4, 4) for name in ("q", "k", "v", "output_transform")}
        | {
            f"dot_product_attention_relative/relative_positions_{kind}/embeddings": torch.randn(5, 2)
            for kind in ("keys", "values")
        },
        layer_norm_eps=1e-6,
    ),
    "checkpoints.from_opennmt": lambda: _from(
        checkpoints.from_opennmt,
        {
            **_linears("linear_query", "linear_keys", "linear_values", "final_linear"),
            "relative_positions_embeddings.weight": torch.randn(5, 2),
        },
        layer_norm_eps=1e-6,
        activation="relu",
    ),
    "checkpoints.from_fairseq2": lambda: _from(
        checkpoints.from_fairseq2,
        {**_linears("q_proj", "k_proj", "v_proj", "output_proj"), "sdpa.rel_k_embed.weight": torch.randn(5, 2)},
        clip=(3, 1),
    ),
    "checkpoints.from_rat_sql": lambda: _from(
        checkpoints.from_rat_sql, _rat_sql(), labeler=rg.labelers.SchemaRelations(released=True), layer_norm_eps=1e-5
    ),
    "checkpoints.from_graphormer": lambda: _from(
        checkpoints.from_graphormer,
        _graphormer(),
        edge_types={"single": (0,), "double": (1,)},
        virtual_node=9,
        spatial_pos_max=5,
        multi_hop_max_dist=2,
        pre_layernorm=True,
        activation="gelu",
        layer_norm_eps=1e-5,
    ),
    "checkpoints.from_bert": lambda: _from(
        checkpoints.from_bert,
        {
            **_linears("self.query", "self.key", "self.value", "output.dense"),
            "self.distance_embedding.weight": torch.randn(5, 2),
        },
        position_embedding_type="relative_key",
        activation="gelu",
        layer_norm_eps=1e-12,
    ),
    "networkx.from_networkx": lambda: Good(
        networkx.from_networkx,
        {
            "graph": _theirs(),
            "edge_type": "sort",
            "types": ["up", "down"],
            "node_type": "sort",
            "node_types": ["x", "y"],
            "node_features": "size",
            "edge_features": ["weight"],
            "batch": "home",
        },
        also={"graph": ("batch",), "types": ("edge_type",), "node_types": ("node_type",)},
        accepts={"node_features": ("list",), "types": HASHABLE},
    ),
    "networkx.from_networkx (functions)": lambda: Good(
        networkx.from_networkx,
        {
            "graph": [_theirs(), _theirs(nx.MultiGraph)],
            "edge_type": lambda u, v, of: u == v,
            "node_type": lambda node, of: node,
            "node_features": lambda node, of: [of["size"], 1],
            "edge_features": lambda u, v, of: of["weight"],
        },
        also={"graph": ("graphs",), "edge_type": ("types",), "node_type": ("node_types",)},
    ),
    "networkx.from_networkx (types)": lambda: _holding(
        "sort", 1, (*ANY_NAME, "float", "word", "numpy float", "tensor of floats"), edge_type="sort"
    ),
    "networkx.from_networkx (weights)": lambda: _holding(
        "weight", 0.5, ("numpy array", "true", "list", "tensor"), edge_features="weight"
    ),
    "networkx.from_networkx (graphs)": lambda: _at_home(1),
    "networkx.from_networkx (a number of graphs)": lambda: _counted(2),
    "networkx.to_networkx": lambda: Good(
        networkx.to_networkx,
        {
            "graph": graph(),
            "nodes": ["a", "b", "c"],
            "types": ["up", "down"],
            "node_types": ["x", "y"],
            "x": torch.randn(3, 2),
            "edge_attr": torch.randn(2),
        },
        also={"graph": ("nodes", "types", "node_types", "x", "edge_attr")},
        accepts={"nodes": HASHABLE, "types": HASHABLE, "node_types": HASHABLE},
    ),
    "networkx.labels_to_networkx": lambda: Good(
        networkx.labels_to_networkx,
        {"labels": rg.ClippedDistance(1)(3), "names": ["left", "here", "right"]},
        also={"labels": ("names",)},
        accepts={"names": WORDS},
    ),
    "networkx.labels_to_networkx (edges)": lambda: Good(
        networkx.labels_to_networkx,
        {"labels": rg.EdgeLabels(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1]), 2, q_len=3)},
    ),
    "conllu.read": lambda: _but(FileNotFoundError, conllu.read, file=io.StringIO(TREE)),
    "conllu.parse": lambda: Good(
        conllu.parse,
        {"text": TREE, **RELATIONS},
        also={"text": ("sentence 1",), "relations": ("relation",), "tags": ("tag",)},
        accepts={"relations": WORDS},
    ),
    "pandas.Database": lambda: Good(
        pandas.Database,
        _tables(),
        also={"tables": ("primary_keys", "foreign_keys", "times"), "primary_keys": ("foreign_keys",)},
    ),
    "pandas.Database.around": lambda: Good(
        pandas.Database(**_tables()).around,
        {
            "table": "results",
            "row": 1,
            "until": "2020-07-01",
            "most_cells": 9,
            "width": 2,
            "newest": True,
            "hide": "points",
            "seed": 1,
        },
        also={"row": ("most_cells",), "table": ("hide", "row")},
    ),
    "python.read": lambda: _but(SyntaxError, python.read, ("bytes",), source="x = 1\nprint(x)"),
    "python.SourceGraph.edges": lambda: Good(python.read("x = 1").edges, {"name": "LAST_WRITE"}),
    "python.SourceGraph.only": lambda: Good(python.read("x = 1").only, {"nodes": [0, 2]}),
}
