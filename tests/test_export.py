"""Exported programs hold torch's own operators only, of any size, and run where relgraph is not: AOTInductor, ONNX."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import relgraph as rg

pytest.importorskip("torch_geometric", reason="RelationConv needs torch_geometric")

BATCH, NODES, EDGES = Dim("batch", min=1, max=64), Dim("nodes", min=2, max=4096), Dim("edges", min=2, max=10**5)
SIZES = ((2, 9, 20), (1, 5, 7), (3, 130, 300))
LABELS = 5


class Every(nn.Module):
    """A layer of each kind of labels, by distance, with ids that the caller writes out, and over edges; a graph layer.

    The first is a whole encoder layer; more of them would add compilers' time alone.
    """

    def __init__(self):
        super().__init__()
        self.first = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(3))
        self.second = rg.RelationAttention(16, 4, num_labels=LABELS)
        self.third = rg.RelationAttention(16, 4, num_labels=LABELS)
        self.conv = rg.pyg.RelationConv(16, 4, heads=4, num_relations=LABELS)

    def forward(self, x, ids, edge_index, edge_type):
        edges = rg.EdgeLabels(edge_index, edge_type, LABELS, q_len=x.shape[1])
        x = self.second(self.first(x), labels=rg.DenseLabels(ids, LABELS))
        return self.third(x, labels=edges) + self.conv(x[0], edge_index, edge_type)


def inputs(batch, nodes, edges):
    ids = torch.randint(-1, LABELS, (batch, nodes, nodes))
    return torch.randn(batch, nodes, 16), ids, torch.randint(0, nodes, (2, edges)), torch.randint(0, LABELS, (edges,))


DYNAMIC = ({0: BATCH, 1: NODES}, {0: BATCH, 1: NODES, 2: NODES}, {1: EDGES}, {0: EDGES})


@functools.cache
@torch.no_grad()
def exported():
    """The model and its program, made once for all targets."""
    torch.manual_seed(0)
    model = Every().eval()
    return model, export(model, inputs(*SIZES[0]), dynamic_shapes=DYNAMIC)


def check(run):
    model, _ = exported()
    for size in SIZES:
        given = inputs(*size)
        torch.testing.assert_close(run(*given), model(*given), atol=1e-5, rtol=1e-5)


def ours(program):
    return {str(node.target) for node in program.graph.nodes if "relgraph" in str(node.target)}


@torch.no_grad()
def test_torch_operators_only():
    program = exported()[1]
    assert not ours(program)
    check(program.run_decompositions().module())


def test_a_loaded_program_needs_no_relgraph(tmp_path):
    (model, program), given = exported(), inputs(*SIZES[2])
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((given, model(*given).detach()), tmp_path / "pair.pt")
    code = (
        "import sys, torch\n"
        "given, wanted = torch.load('pair.pt')\n"
        "torch.testing.assert_close(torch.export.load('model.pt2').module()(*given), wanted, atol=1e-5, rtol=1e-5)\n"
        "assert 'relgraph' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=tmp_path)


def packaged(program, folder):
    """The function of a package of AOTInductor."""
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    return torch._inductor.aoti_load_package(package)


@torch.no_grad()
def test_aot_inductor(tmp_path):
    check(packaged(exported()[1], tmp_path))


@torch.no_grad()
def test_aot_inductor_of_fixed_sizes(tmp_path):
    model, given = Every().eval(), inputs(1, 9, 20)
    model.first = model.first.self_attn
    run = packaged(export(model, given), tmp_path)
    for x in (given[0], torch.randn(1, 9, 16)):
        torch.testing.assert_close(run(x, *given[1:]), model(x, *given[1:]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_onnx(tmp_path):
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnx and onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    torch.onnx.export(exported()[1], dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    names = [one.name for one in session.get_inputs()]

    def run(*given):
        return torch.from_numpy(session.run(None, dict(zip(names, [x.numpy() for x in given], strict=True)))[0])

    check(run)


class Packed(nn.Module):
    """Sequences end to end, whose borders the caller gives."""

    def __init__(self):
        super().__init__()
        self.encoder = rg.RelationEncoder(rg.RelationEncoderLayer(16, 4, 32, num_labels=7), 2)

    def forward(self, x, ptr):
        return self.encoder(x, labels=rg.ClippedDistance(3)(x.shape[0], ptr=ptr))


class Steps(nn.Module):
    """Three steps with a cache."""

    def __init__(self):
        super().__init__()
        self.attention = rg.RelationAttention(16, 4, labeler=rg.ClippedDistance(3))

    def forward(self, x):
        cache = rg.KVCache()
        return torch.cat([self.attention(x[:, i : i + 1], cache=cache, is_causal=True) for i in range(3)], 1)


LENGTH, GRAPHS = Dim("length", min=2, max=512), Dim("graphs", min=3, max=64)
SUM = rg.ClippedDistance(3) + rg.BucketedDistance()


def graph(n):
    return torch.randn(1, n, 16), torch.randint(0, n, (2, 2 * n + 1)), torch.randint(0, LABELS, (2 * n + 1,))


class AdditiveConv(nn.Module):
    """A graph layer whose scores are computed pair by pair."""

    def __init__(self):
        super().__init__()
        score = rg.score.Additive.learned(4, 4)
        self.conv = rg.pyg.RelationConv(16, 4, heads=4, num_relations=LABELS, score=score)

    def forward(self, x, edge_index, edge_type):
        return self.conv(x[0], edge_index, edge_type)


OTHERS = {
    "additive over edges": (AdditiveConv, graph, ({1: NODES}, {1: EDGES}, {0: EDGES})),
    "a layer with scores and maps": (
        lambda: rg.RelationAttention(
            16, 4, labeler=rg.ClippedDistance(3), score=rg.score.Additive.learned(4, 4), value_map=2
        ),
        lambda n: (torch.randn(2, n, 16),),
        ({1: LENGTH},),
    ),
    "sum": (
        lambda: rg.RelationEncoder(rg.RelationEncoderLayer(16, 4, 32, labeler=SUM), 2),
        lambda n: (torch.randn(2, n, 16),),
        ({1: LENGTH},),
    ),
    "encoder–decoder": (
        lambda: rg.RelationTransformer(16, 4, 1, 1, 32),
        lambda n: (torch.randn(2, n, 16), torch.randn(2, 5, 16)),
        ({1: LENGTH}, None),
    ),
    "packed": (
        Packed,
        lambda n: (torch.randn(n, 16), torch.tensor([0, n // 2, n - 1, n])),
        ({0: LENGTH}, {0: GRAPHS}),
    ),
    "steps with a cache": (Steps, lambda n: (torch.randn(n, 3, 16),), ({0: LENGTH},)),
}


@pytest.mark.parametrize("name", OTHERS)
@torch.no_grad()
def test_other_forms(name):
    make, given, sizes = OTHERS[name]
    model = make().eval()
    program = export(model, given(9), dynamic_shapes=sizes)
    assert not ours(program)
    for n in (9, 4, 30):
        inputs = given(n)
        torch.testing.assert_close(program.module()(*inputs), model(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`treespec:FutureWarning")  # torch's, about how transformers reads a program
@pytest.mark.parametrize(("name", "exporter"), [("T5", "Dynamo"), ("DeBERTa", "Onnx")])
@torch.no_grad()
def test_patched_models(name, exporter):
    """By the exporters of transformers."""
    transformers = pytest.importorskip("transformers")
    exporters = pytest.importorskip("transformers.exporters", reason="these transformers have no exporters")
    if exporter == "Onnx":
        pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnx and onnxscript")
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    sizes = {"vocab_size": 40, "num_layers": 2, "num_heads": 2}
    if name == "T5":
        model = transformers.T5EncoderModel(transformers.T5Config(d_model=16, d_kv=8, d_ff=16, **sizes)).eval()
    else:
        config = transformers.DebertaV2Config(
            vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            relative_attention=True, position_buckets=8, max_position_embeddings=32, pos_att_type=["p2c", "c2p"],
            share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False,
        )  # fmt: skip
        model = transformers.DebertaV2Model(config).eval()
    rg.interop.transformers.patch(model)

    given, sizes = {"input_ids": torch.randint(3, 40, (2, 9))}, {"input_ids": {1: Dim("n", min=2, max=32)}}
    make, config = (getattr(exporters, f"{exporter}{kind}") for kind in ("Exporter", "Config"))
    program = make().export(model, given, config=config(dynamic_shapes=sizes))
    if exporter == "Dynamo":
        assert not ours(program.program)
    for length in (9, 4, 30):
        ids = torch.randint(3, 40, (2, length))
        found = program(input_ids=ids).last_hidden_state
        torch.testing.assert_close(found, model(ids).last_hidden_state, atol=1e-5, rtol=1e-5)
