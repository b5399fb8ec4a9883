"""Patched modules as objects: pickled, and with weights that accelerate keeps elsewhere."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch

transformers = pytest.importorskip("transformers")

from relgraph.interop import transformers as ours  # noqa: E402
from relgraph.interop.transformers import common  # noqa: E402
from tests.interop.transformers import judge  # noqa: E402
from tests.interop.transformers.test_every_family import CASES  # noqa: E402


def made(name):
    return CASES[name].model(), CASES[name].inputs()


@pytest.mark.parametrize("name", ["t5", "umt5", "deberta v2", "conformer"])
def test_a_pickled_model_is_patched(name):
    model, inputs = made(name)
    ours.patch(model, impl="chunked")
    back = pickle.loads(pickle.dumps(model))
    names = {name for name, one in model.named_modules() if hasattr(one, common.IMPL)}
    assert names == {name for name, one in back.named_modules() if getattr(one, common.IMPL, None) == "chunked"}
    assert [type(one) for one in back.modules()] == [type(one) for one in model.modules()]
    judge.assert_same(judge.everything(back, inputs), judge.everything(model, inputs), 0.0)
    assert ours.unpatch(back) == len(names)


def test_unpatching_leaves_nothing_behind():
    model, inputs = made("t5")
    before = [set(vars(one)) for one in model.modules()]
    ours.patch(model)
    model(**inputs)
    ours.unpatch(model)
    assert [set(vars(one)) - {"forward"} for one in model.modules()] == before


@pytest.mark.filterwarnings("ignore:The `device` argument is deprecated:FutureWarning")  # their own call
@pytest.mark.parametrize(
    ("name", "first"),
    [*product(("t5", "umt5", "conformer", "layoutlm"), ("patched", "offloaded"))],
)
def test_tables_that_accelerate_offloads(name, first):
    """Their weights are on the meta device, but while the embedding is called."""
    accelerate = pytest.importorskip("accelerate")
    model, inputs = made(name)
    mine = copy.deepcopy(model)
    cpu = torch.device("cpu")
    if first == "patched":
        ours.patch(mine)
        accelerate.cpu_offload(mine, cpu)
    else:
        accelerate.cpu_offload(mine, cpu)
        ours.patch(mine)
    with torch.no_grad():
        found, wanted = (one(**inputs) for one in (mine, model))
    found, wanted = (x["logits" if "logits" in x else 0] for x in (found, wanted))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of torch while it compiles
@pytest.mark.parametrize("name", ["t5", "deberta v2", "layoutlm"])
def test_one_graph_without_breaks(name):
    """Buckets are worked out when the model is patched: a graph may not wait for numbers."""
    model, inputs = made(name)
    if name == "t5":
        inputs = {"input_ids": inputs["input_ids"], "decoder_input_ids": inputs["labels"]}
    inputs.pop("labels", None)
    ours.patch(model)
    torch.compiler.reset()
    found = torch.compile(model, backend="eager", fullgraph=True)(**inputs)
    torch.testing.assert_close(found.logits, model(**inputs).logits)
    torch.compiler.reset()


def test_hooks_of_accelerate_ask_for_no_weights(monkeypatch):
    hooks = pytest.importorskip("accelerate.hooks")
    model, inputs = made("t5")
    ours.patch(model)
    for module in model.modules():
        if hasattr(module, common.IMPL):
            hooks.add_hook_to_module(module, hooks.AlignDevicesHook(torch.device("cpu")))
    wanted = model(**inputs).logits
    judge.refuse_weights(monkeypatch)
    torch.testing.assert_close(model(**inputs).logits, wanted)
