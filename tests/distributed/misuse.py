"""Every argument of attention and of a layer with wrong values, in turn, on one process, within a region.

A wrong value may be right elsewhere, so what counts is that processes agree and go on; ``test_misuse.py`` says so.
"""

from __future__ import annotations

import inspect
from functools import partial

import torch

import relgraph as rg
from tests.distributed.worlds import caught

BATCH, HEADS, ROWS, WIDTH, LABELS = 2, 4, 4, 8, 7
"""ROWS are those of one process."""


def values(whole):
    """What users may give by mistake, by name."""
    shape = (BATCH, HEADS, ROWS, WIDTH)
    return {
        "None": None,
        "a text": "x",
        "an int": 3,
        "no number": float("nan"),
        "below zero": -1,
        "a bool": True,
        "a list": [1.0],
        "beyond int64": 1 << 80,
        "a vector": torch.ones(3),
        "a number": torch.tensor(1.0),
        "no entries": torch.ones(0),
        "complex": torch.ones(shape, dtype=torch.complex64),
        "half": torch.ones(shape, dtype=torch.float16),
        "fewer rows": torch.ones(BATCH, HEADS, ROWS - 1, WIDTH),
        "without numbers": torch.ones(shape, device="meta"),
        "sparse": torch.ones(whole, whole).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged),
        "a mask of own rows": torch.ones(ROWS, whole).bool(),
        "a mask of own keys": torch.ones(1, 1, 1, ROWS),
        "a table": torch.ones(LABELS, WIDTH),
        "labels": rg.ClippedDistance(1)(whole),
        "labels of own rows": rg.ClippedDistance(1)(ROWS),
        "edges": rg.EdgeLabels(torch.tensor([[0, 0], [1, 1]]), torch.tensor([0, 1]), LABELS, q_len=whole),
    }


def calls(whole):
    """A function and a layer, each with the arguments of a call that is right."""
    torch.manual_seed(0)
    q, x, labels = torch.randn(BATCH, HEADS, ROWS, WIDTH), torch.randn(BATCH, ROWS, 32), rg.ClippedDistance(3)(whole)
    given = {"query": q, "key": q, "value": q, "labels": labels, "bias_table": torch.randn(LABELS)}
    yield "function", rg.relation_attention_with_aux, given
    yield "layer", rg.RelationAttention(32, 4, num_labels=LABELS), {"query": x, "labels": labels}


def cases(mesh):
    """For each argument and value, the exception or "answered".

    Each case has a region of its own, because processes compare a call once per region, and a right call follows in it.
    """
    whole, rank = ROWS * mesh.size(), mesh.get_local_rank()
    region = partial(rg.distributed.context_parallel, mesh)
    for kind, function, given in calls(whole):
        with region():
            wanted = output_of(function, given)
        signature = inspect.signature(function.forward if kind == "layer" else function)
        for at, name in enumerate(signature.parameters):
            for what, value in list(values(whole).items())[at % 3 :: 3]:
                with region():
                    found = caught(partial(output_of, function, given | {name: value} if rank == 1 else given))
                    yield (kind, name, what), found if isinstance(found, str) else "answered"
                    assert torch.equal(output_of(function, given), wanted)


def output_of(function, given):
    found = function(**given)
    return found[0] if isinstance(found, tuple) else found
