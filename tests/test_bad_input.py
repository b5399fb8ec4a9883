"""Every argument of every public callable, spoiled in every way: a result, or an error that names the argument."""

from __future__ import annotations

import inspect

import pytest

import relgraph as rg
from tests.docstrings import exports
from tests.good_calls import GOOD_CALLS
from tests.good_calls.distributed import world
from tests.judge import fault, held_back, used
from tests.mutations import mutations_of

RESULTS = ("AttentionAux", "ImplChoice", "LabelCounts", "PathLabels", "SumCounts")
RESULTS += ("FromNetworkx", "HeteroGraph", "Sentence", "Sample", "SourceGraph", "Report")
"""Values that the library gives: nobody calls these with arguments of their own."""

NO_RESULT = {"KVCache.reorder", "LabelTable.set_extra_state", "LayerCache.reorder", "StackCache.reorder"}
NO_RESULT |= {"check_label_names", "transformers.register"}

INNER = ("RelationConv.collect", "RelationConv.message", "RelationConv.propagate")
INNER += ("RelationTransformer.base", "RelationTransformer.big")
INNER += tuple(f"Labels.{method}" for method in ("__add__", "__mul__", "__or__", "__and__"))
INNER += tuple(
    f"{score}.{method}"
    for score in ("Additive", "Bilinear", "LeakyReLU", "Softcap")
    for method in ("with_tensors", "with_weight", "with_function", "act", "finish")
)
"""Methods that PyG or implementations call, those whose arguments are the constructor's, and operators that are
functions of ``rg.labels``."""

INNER += (
    "transformers.RelationCollator.__call__",
    "transformers.RelgraphCallback.on_init_end",
    "transformers.Relation.forward",
)
INNER += ("RelationAttention.load_state_dict", "transformers.from_pretrained")
"""What Trainer, attention modules and torch call, and what reads a model from a folder."""

MODULES = (rg, rg.functional, rg.score, rg.labels, rg.labelers, rg.nn, rg.pyg, rg.plot, rg.distributed)
INTEROP = {name: getattr(rg.interop, name) for name in rg.interop.MODULES}

CASES = [(name, argument) for name, make in GOOD_CALLS.items() for argument in make().arguments]


@pytest.fixture(scope="module", autouse=True)
def _world():
    """Make one world for all calls, as its threads take more memory than a call may take."""
    with world():
        yield


@pytest.mark.parametrize("name", GOOD_CALLS)
def test_good_calls_are_good(name):
    good = GOOD_CALLS[name]()
    with held_back():
        result = used(good.call(**good.arguments))
    assert (result is None) == (name in NO_RESULT)


@pytest.mark.parametrize(("name", "argument"), CASES, ids=lambda part: part)
def test_spoiled(name, argument):
    mutations = list(mutations_of(GOOD_CALLS[name]().arguments[argument]))
    faults = [fault(GOOD_CALLS[name](), argument, mutation) for mutation in mutations]
    told = [f for f in faults if f is not None]
    assert not told, f"{len(told)} of {len(mutations)}:\n" + "\n".join(told)


def _public():
    """Yield the name and the value of every public callable."""
    for prefix, module in [("", module) for module in MODULES] + [(f"{name}.", INTEROP[name]) for name in INTEROP]:
        for name in exports(module):
            value = getattr(module, name)
            if callable(value) and name not in RESULTS:
                yield f"{prefix}{name}", value


def _takes_arguments(function) -> bool:
    return len([p for p in inspect.signature(function).parameters if p not in ("self", "cls")]) > 0


def _wanted():
    """Yield the keys that there must be: functions, classes, and their methods that take arguments."""
    public = dict(_public())
    for name, value in public.items():
        if not inspect.isclass(value):
            yield name
            continue
        if not inspect.isabstract(value) and _takes_arguments(value):
            yield name
        for method in dir(value):
            owner = next(base for base in value.__mro__ if method in vars(base))
            made = getattr(owner, method)
            if not owner.__module__.startswith("relgraph") or not inspect.isroutine(made):
                continue
            if getattr(made, "__isabstractmethod__", False) or not _takes_arguments(made):
                continue
            if not method.startswith("_") or method in (
                "__call__",
                "__getitem__",
                "__mul__",
                "__add__",
                "__or__",
                "__and__",
            ):
                yield f"{owner.__name__ if owner.__name__ in public else name}.{method}"


def test_every_public_callable_has_a_good_call():
    there = {name.partition(" ")[0] for name in GOOD_CALLS}
    missing = sorted(set(_wanted()) - there - set(INNER))
    assert not missing
