"""What leaves the repository against the same in it: exported programs, weights of 8 bits, libraries of wheels.

    python -m docs.benchmarks.shipped onnx      # an encoder in onnxruntime, dense and native in Python
    python -m docs.benchmarks.shipped bits      # torchao's weights of 8 bits: time, and what they change
    python -m docs.benchmarks.shipped libraries --files FOLDER/*.so # kernels of wheels, and those of this processor

``.ci/wheels --libraries x86_64 FOLDER`` makes the kernels of wheels. Ways run in turn. Times are those of the
processor, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import export

import relgraph as rg
from docs.benchmarks.about import command
from docs.benchmarks.attention import leaves, ways
from docs.benchmarks.measure import Rows, in_turn, ratio
from docs.benchmarks.patched import _deberta
from relgraph.impl.native import build, found

WIDTH, HEADS, LABELS = 256, 8, 33


class Encoder(nn.Module):
    """Layers with labels by distance."""

    def __init__(self, impl: str | None, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = rg.RelationEncoderLayer(WIDTH, HEADS, 4 * WIDTH, impl=impl, labeler=rg.ClippedDistance(LABELS // 2))
        self.encoder = rg.RelationEncoder(layer, layers).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


def compared(work: str, calls: dict[str, Callable[[], Any]], rounds: int) -> Rows:
    """A row per way: its milliseconds, and the ratio to the first way."""

    def timed(call: Callable[[], Any]) -> float:
        start = time.process_time()
        call()
        return (time.process_time() - start) * 1e3

    taken = in_turn({name: partial(timed, call) for name, call in calls.items()}, rounds)
    floor = next(iter(taken.values()))
    return [{"work": work, "way": name, "ms": round(statistics.median(times), 1), "×": ratio(times, floor)}
            for name, times in taken.items()]  # fmt: skip


@torch.no_grad()
def onnx(arguments: argparse.Namespace) -> Rows:
    """An encoder of two layers in onnxruntime, and by dense and native in Python."""
    import onnxruntime

    models = {impl: Encoder(impl) for impl in ("dense", "native")}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    found = []
    for length in arguments.lengths or [512]:
        x = torch.randn(1, length, WIDTH)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            torch.onnx.export(export(models["dense"], (x,)), dynamo=True, verbose=False).save(file.name)
            session = onnxruntime.InferenceSession(file.name, options)
        feed = {session.get_inputs()[0].name: x.numpy()}
        torch.testing.assert_close(torch.from_numpy(session.run(None, feed)[0]), models["dense"](x), atol=1e-4, rtol=0)
        calls: dict[str, Callable[[], Any]] = {name: partial(model, x) for name, model in models.items()}
        calls["onnxruntime"] = partial(session.run, None, feed)
        found += compared(f"{length} tokens", calls, arguments.rounds)
    return found


@torch.no_grad()
def bits(arguments: argparse.Namespace) -> Rows:
    """An encoder of four layers, and two patched layers of DeBERTa."""
    import torchao.quantization as ao

    x, rows = torch.randn(1, 128, 768), []
    tokens = {"hidden_states": x, "attention_mask": torch.ones(1, 128, dtype=torch.long)}

    def deberta() -> nn.Module:
        torch.manual_seed(0)
        model = _deberta("eager", 2).eval()
        rg.interop.transformers.patch(model)
        return model

    def encoder() -> nn.Module:
        return Encoder(None, 4)

    inputs = torch.randn(4, 128, WIDTH)
    for name, make, call in (
        ("encoder", encoder, lambda model: model(inputs)),
        ("patched DeBERTa", deberta, lambda model: model(**tokens).last_hidden_state),
    ):
        models: dict[str, Any] = {"float32": make()}
        for config in (ao.Int8WeightOnlyConfig, ao.Int8DynamicActivationInt8WeightConfig):
            models[config.__name__] = model = make()
            ao.quantize_(model, config())
        wanted = call(models["float32"])
        changed = {way: (call(model) - wanted).norm() / wanted.norm() for way, model in models.items()}
        found = compared(name, {way: partial(call, model) for way, model in models.items()}, arguments.rounds)
        rows += [{**row, "changed": f"{changed[str(row['way'])]:.1%}"} for row in found]
    return rows


def libraries(arguments: argparse.Namespace) -> Rows:
    """Forward and backward by the kernels of this process, and by those of other libraries."""
    loaded = {"native": build.kernels()}
    for path in arguments.files:
        loaded[path.stem] = build._tried(build._open(path), found.find(), path)

    def step(kernels: build.Kernels, call: Callable[[], Tensor]) -> None:
        build._known = kernels
        output = call()
        output.backward(torch.ones_like(output))

    rows = []
    for length in arguments.lengths or [1024]:
        for name, call in ways(*leaves(1, 8, length, 64), ["native"]).items():
            if not name.endswith("no labels"):
                calls = {way: partial(step, kernels, call) for way, kernels in loaded.items()}
                rows += compared(f"{name}, {length} tokens", calls, arguments.rounds)
    build._known = loaded["native"]
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", help="numbers of tokens; bits has its own")
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="libraries: the files")
    command(parser, {"onnx": onnx, "bits": bits, "libraries": libraries}, arguments)


if __name__ == "__main__":
    main()
