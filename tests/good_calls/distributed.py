"""Good calls of ``relgraph.distributed``, in a world of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import relgraph as rg
from tests.judge import Good


@contextmanager
def world() -> Iterator[DeviceMesh]:
    """The world of this process, which ends here unless it was there before."""
    if distributed.is_initialized():
        yield init_device_mesh("cpu", (1,))
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


@cache
def _mesh() -> DeviceMesh:
    """A mesh that stands for that of the world at the time of a call."""
    with world() as mesh:
        return mesh


def _within(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call in the world of its time, whose mesh takes the place of a good one."""

    def called(**given: Any) -> Any:
        with world() as mesh:
            if isinstance(given.get("mesh"), DeviceMesh):
                given["mesh"] = mesh
            return call(**given)

    return called


def _of_region(name: str) -> Callable[..., Any]:
    """A method of what ``context_parallel`` yields."""

    def call(**given: Any) -> Any:
        with world() as mesh, rg.distributed.context_parallel(mesh) as region:
            return getattr(region, name)(**given)

    return call


def _entered(**given: Any) -> Any:
    """A block that is entered and left."""
    with rg.distributed.context_parallel(**given) as region:
        return region


def _layout(name: str) -> Callable[..., Any]:
    return getattr(rg.distributed.Layout(8, 2, "head-tail"), name)


GOOD_CALLS = {
    "context_parallel": lambda: Good(_within(_entered), {"mesh": _mesh(), "layout": "even"}),
    "ContextParallel": lambda: Good(_within(rg.distributed.ContextParallel), {"mesh": _mesh(), "layout": "even"}),
    "ContextParallel.layout_of": lambda: Good(_of_region("layout_of"), {"length": 8}),
    "ContextParallel.gather": lambda: Good(_of_region("gather"), {"x": torch.randn(2, 8, 4), "dim": 1}),
    "HeadParallel": lambda: Good(
        rg.distributed.HeadParallel,
        {"input_layouts": Replicate(), "output_layouts": Shard(1), "use_local_output": True},
    ),
    "Layout": lambda: Good(rg.distributed.Layout, {"length": 8, "processes": 2, "kind": "head-tail"}),
    "Layout.runs": lambda: Good(_layout("runs"), {"rank": 1}),
    "Layout.positions": lambda: Good(_layout("positions"), {"rank": 1, "device": "cpu"}),
    "Layout.shard": lambda: Good(_layout("shard"), {"x": torch.randn(2, 8, 4), "rank": 1, "dim": 1}),
}
