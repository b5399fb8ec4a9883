"""Kernels of ``impl="triton"`` that only count their launches, so that a test sees what the host does around them."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import torch

import relgraph as rg

LABELS = 17


class Stub:
    """Stands for a kernel."""

    launches = 0

    def __init__(self, name):
        self.name = name

    def __getitem__(self, _):
        return self

    def __call__(self, *_, **__):
        Stub.launches += 1


@contextlib.contextmanager
def stubbed():
    """Replace all kernels by stubs."""
    from triton.runtime import KernelInterface

    import relgraph.impl.triton as folder

    modules = [
        importlib.import_module(f"{folder.__name__}.{found.name}") for found in pkgutil.iter_modules(folder.__path__)
    ]
    kernels = [
        (module, name, x) for module in modules for name, x in vars(module).items() if isinstance(x, KernelInterface)
    ]
    for module, name, _ in kernels:
        setattr(module, name, Stub(name))
    try:
        yield
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def labels_of(length):
    """Labels by distance, written out, and of edges only."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(LABELS, (length, length), generator=generator)
    edges = torch.randint(length, (2, 4 * length), generator=generator)
    edge_ids = torch.randint(LABELS, (4 * length,), generator=generator)
    return {
        "by distance": rg.ClippedDistance(LABELS // 2)(length),
        "written out": rg.DenseLabels(ids, LABELS),
        "edges only": rg.EdgeLabels(edges, edge_ids, LABELS, q_len=length, default=None),
    }
