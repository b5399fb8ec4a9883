"""What spoils the argument of a call: values of another type, shape, dtype or device, NaN, huge, negative, sparse.

A mutation is a named function from a good value to a spoiled one; ``mutations_of`` gives those that apply to a value. A
new way to spoil a value is one more entry below.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import relgraph as rg


class Mutation(NamedTuple):
    """A way to spoil a value; ``refused`` says that a callable must not take what comes of it."""

    name: str
    change: Callable[[Any], Any]
    refused: bool = False


def _by(refused: bool, **changes: Callable[[Any], Any]) -> tuple[Mutation, ...]:
    return tuple(Mutation(name.replace("_", " ").strip(), change, refused) for name, change in changes.items())


def _quietly(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Layouts that torch calls experimental warn when they are made."""

    def quiet(value: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return change(value)

    return quiet


NONSENSE = _by(
    True,
    object=lambda _: object(),
    text=lambda _: "no such thing",
    numpy_array=lambda _: np.ones(3),
    a_class=lambda _: dict,
    complex=lambda _: 1j,
)
EMPTY_HANDED = _by(
    False,
    none=lambda _: None,
    nan=lambda _: float("nan"),
    ten_to_the_30=lambda _: 10**30,
    five_thousand_digits=lambda _: 10**5000,  # more than Python prints
)
A_TENSOR = _by(True, tensor=lambda _: torch.ones(2))
A_NUMBER = _by(True, number=lambda _: 3)

FLAGS = (
    *NONSENSE,
    *EMPTY_HANDED,
    *_by(
        True,
        scalar_tensor=lambda value: torch.tensor(value),
        tensor=lambda value: torch.tensor([value, value]),
        numpy_bool=lambda value: np.bool_(value),
        one=lambda value: 1,
        zero=lambda value: 0,
        float=lambda value: float(value),
        list=lambda value: [value],
        word=lambda value: str(value),
    ),
)
INTS = (
    *NONSENSE,
    *EMPTY_HANDED,
    *_by(
        True,
        true=lambda _: True,
        float=lambda value: float(value),
        half=lambda value: value + 0.5,
        word=lambda value: str(value),
        numpy_float=lambda value: np.float64(value),
        list=lambda value: [value],
        tensor_of_floats=lambda value: torch.tensor(float(value)),
    ),
    *_by(
        False,
        tensor=lambda value: torch.tensor(value),
        meta_tensor=lambda value: torch.tensor(value, device="meta"),
        numpy_int=lambda value: np.int64(value),
        minus_one=lambda _: -1,
        zero=lambda _: 0,
        one_more=lambda value: value + 1,
        a_billion=lambda _: 10**9,
        two_to_the_31=lambda _: 2**31,
        two_to_the_63=lambda _: 2**63,
        minus_two_to_the_63=lambda _: -(2**63),
    ),
)
FLOATS = (
    *NONSENSE,
    *EMPTY_HANDED,
    *_by(
        True,
        true=lambda _: True,
        word=lambda value: str(value),
        list=lambda value: [value],
        tensor=lambda value: torch.tensor(value),
        meta_tensor=lambda value: torch.tensor(value, device="meta"),
    ),
    *_by(
        False,
        numpy_float=lambda value: np.float32(value),
        minus_one=lambda _: -1.0,
        two=lambda _: 2.0,
        infinite=lambda _: float("inf"),
        largest=lambda _: sys.float_info.max,
        ten_to_the_400=lambda _: 10**400,
    ),
)
TEXTS = (
    *NONSENSE,
    *EMPTY_HANDED,
    *A_NUMBER,
    *A_TENSOR,
    *_by(
        True,
        list=lambda value: [value],
        bytes=lambda value: value.encode(),
        numpy_words=lambda value: np.array([value, value]),
        true=lambda _: True,
    ),
    *_by(False, no_letters=lambda _: "", upper=lambda value: value.upper()),
)
DTYPES = (
    *NONSENSE,
    *EMPTY_HANDED,
    *A_NUMBER,
    *A_TENSOR,
    *_by(True, word=lambda _: "float32", numpy_dtype=lambda _: np.float32, layout=lambda _: torch.strided),
    *_by(
        False,
        int64=lambda _: torch.int64,
        bool=lambda _: torch.bool,
        complex64=lambda _: torch.complex64,
        uint16=lambda _: torch.uint16,
        float8=lambda _: torch.float8_e4m3fn,
    ),
)
DEVICES = (
    *NONSENSE,
    *EMPTY_HANDED,
    *A_TENSOR,
    *_by(
        True,
        dtype=lambda _: torch.float32,
        half=lambda _: 1.5,
        true=lambda _: True,
        bytes=lambda _: b"cpu",
        list=lambda _: ["cpu"],
        no_letters=lambda _: "",
        no_number=lambda _: "cpu:x",
    ),
    *_by(
        False,
        meta=lambda _: "meta",
        absent=lambda _: "cuda:77",
        of_another_build=lambda _: "xpu",
        minus_one=lambda _: -1,
        two_to_the_31=lambda _: 2**31,
    ),
)
FUNCTIONS = (
    *NONSENSE[:3],
    *EMPTY_HANDED,
    *A_NUMBER,
    *A_TENSOR,
    *_by(
        False,
        gives_none=lambda _: lambda *_, **__: None,
        gives_text=lambda _: lambda *_, **__: "no such thing",
        gives_an_object=lambda _: lambda *_, **__: object(),
    ),
)
OBJECTS = (*NONSENSE, *EMPTY_HANDED, *A_NUMBER, *A_TENSOR, *_by(True, list=lambda value: [value], type=type))


def _longer(value: Tensor) -> Tensor:
    return torch.cat([value, value[:1]]) if value.dim() else value.repeat(2)


def _filled(number: float) -> Callable[[Tensor], Tensor]:
    return lambda value: torch.full_like(value, number)


def _nested(value: Tensor, layout: torch.layout) -> Tensor:
    parts = list(value) if value.dim() > 1 else [value.reshape(-1)] * 2
    return torch.nested.nested_tensor(parts, layout=layout)


def _compressed(value: Tensor) -> Tensor:
    return (value if value.dim() >= 2 else value.reshape(1, -1)).to_sparse_csr()


TENSORS = (
    *NONSENSE,
    *EMPTY_HANDED,
    *_by(
        True,
        list=lambda value: value.tolist(),
        tuple=lambda value: (value, value, value),
        numpy=lambda value: value.detach().numpy(),
        sparse=lambda value: value.detach().to_sparse() if value.dim() else value.detach().reshape(1).to_sparse(),
        sparse_rows=_quietly(lambda value: _compressed(value.detach())),
        nested=_quietly(lambda value: _nested(value.detach(), torch.strided)),
        jagged=_quietly(lambda value: _nested(value.detach(), torch.jagged)),
    ),
    *_by(
        False,
        number=lambda _: 3,
        scalar=lambda value: value.new_zeros(()),
        empty=lambda value: value[:0] if value.dim() else value.new_zeros(0),
        longer=_longer,
        one_axis_more=lambda value: value[None],
        two_axes_more=lambda value: value[None, None],
        six_axes=lambda value: value.new_zeros(1, 1, 1, 1, 1, 1),
        flat=lambda value: value.flatten(),
        the_other_way=lambda value: value.mT if value.dim() > 1 else value.flip(0) if value.dim() else value,
        a_million_million=lambda value: value.new_zeros(()).expand(
            2**20, *[2**20] * (value.dim() > 1), *value.shape[2:]
        ),
        expanded=lambda value: value[..., :1].expand_as(value) if value.dim() and value.numel() else value,
        on_meta=lambda value: value.to("meta"),
        as_float=lambda value: value.float(),
        as_double=lambda value: value.double(),
        as_half=lambda value: value.half(),
        as_int=lambda value: value.int(),
        as_byte=lambda value: value.to(torch.uint8),
        as_uint32=lambda value: value.to(torch.int64).to(torch.uint32),
        as_bool=lambda value: value.bool(),
        as_complex=lambda value: value.to(torch.complex64),
        zeros=_filled(0),
    ),
)
FLOATING_TENSORS = (
    *_by(
        True,
        quantized=_quietly(lambda value: torch.quantize_per_tensor(value.detach().float(), 0.1, 0, torch.qint8)),
        mkldnn=_quietly(lambda value: value.detach().float().to_mkldnn()),
    ),
    *_by(
        False,
        nans=_filled(float("nan")),
        infinities=_filled(float("inf")),
        negative=_filled(-7.0),
        float8=lambda value: value.detach().to(torch.float8_e4m3fn),
    ),
)
INTEGER_TENSORS = _by(
    False, negative=_filled(-7), beyond=_filled(2**40), largest=_filled(2**63 - 1), hundred=_filled(100)
)


def _wide(graph: rg.Graph) -> rg.Graph:
    """A million nodes: nothing for what counts edges, a million million pairs for what counts pairs."""
    index = graph.edge_index
    edge_type = graph.edge_type
    return rg.Graph(index, 10**6, edge_type=edge_type, node_type=None if graph.node_type is None else _types(10**6))


def _types(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def _graph(graph: rg.Graph, **changed: Any) -> rg.Graph:
    names = ("edge_index", "num_nodes", "edge_type", "node_type", "ptr")
    return rg.Graph(**{**{name: getattr(graph, name) for name in names}, **changed})


GRAPHS = (
    *OBJECTS,
    *_by(
        False,
        on_meta=lambda graph: graph.to("meta"),
        without_types=lambda graph: _graph(graph, edge_type=None, node_type=None),
        of_high_types=lambda graph: _graph(
            graph,
            edge_type=torch.full((graph.num_edges,), 2**40),
            node_type=torch.full((graph.num_nodes,), 2**40),
        ),
        without_nodes=lambda graph: rg.Graph(
            torch.zeros(2, 0, dtype=torch.int64), 0, edge_type=_types(0), node_type=_types(0)
        ),
        without_edges=lambda graph: _graph(
            graph, edge_index=graph.edge_index[:, :0], edge_type=None if graph.edge_type is None else _types(0)
        ),
        twice=lambda graph: rg.Graph.batch([graph, graph]),
        loops=lambda graph: _graph(graph, edge_index=graph.edge_index[[0, 0]]),
        both_ways=lambda graph: rg.Graph(torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1), graph.num_nodes),
        a_million_nodes=_wide,
    ),
)
LABELS = (
    *OBJECTS,
    *_by(
        False,
        on_meta=lambda labels: labels.to("meta"),
        first_row=lambda labels: labels.rows(0, 1),
        no_rows=lambda labels: labels.rows(0, 0),
        no_cols=lambda labels: labels.cols(0, 0),
        a_sum=lambda labels: rg.SumLabels(labels, labels),
        other_pairs=lambda _: rg.ClippedDistance(1)(2, 9),
        packed=lambda _: rg.ClippedDistance(1)(3, ptr=torch.tensor([0, 2, 3])),
        three_rows=lambda _: rg.DenseLabels(torch.zeros(3, 2, 2, dtype=torch.int64), 1),
    ),
)
LABELERS = (
    *OBJECTS,
    *_by(False, a_sum=lambda labeler: labeler + labeler, labels=lambda _: rg.ClippedDistance(1)(3)),
)


def _first_spoiled(mutation: Mutation) -> Mutation:
    def change(value: Any) -> Any:
        return type(value)([mutation.change(value[0]), *value[1:]])

    return Mutation(f"first entry: {mutation.name}", change, mutation.refused)


def _last_spoiled(mutation: Mutation) -> Mutation:
    def change(value: Any) -> Any:
        return type(value)([*value[:-1], mutation.change(value[-1])])

    return Mutation(f"last entry: {mutation.name}", change, mutation.refused)


def _one_spoiled(key: Any, mutation: Mutation) -> Mutation:
    def change(value: dict[Any, Any]) -> dict[Any, Any]:
        return {**value, key: mutation.change(value[key])}

    return Mutation(f"entry {key!r}: {mutation.name}", change, mutation.refused)


SEQUENCES = (
    *NONSENSE,
    *EMPTY_HANDED,
    *_by(
        False,
        number=lambda _: 3,
        a_billion=lambda _: 10**9,
        tensor=lambda _: torch.ones(2),
        empty=lambda value: type(value)(),
        twice=lambda value: value + value,
        set=lambda value: {str(item) for item in value},
        generator=lambda value: (item for item in value),
        once_more_deep=lambda value: type(value)([value]),
        without_end=lambda _: count(),
        a_long_range=lambda _: range(10**9),
        a_longer_range=lambda _: range(10**30),
        array_of_no_axes=lambda _: np.array(3),
    ),
)
DICTS = (
    *OBJECTS,
    *_by(False, empty=lambda _: {}, other_keys=lambda value: {object(): item for item in value.values()}),
)


def _unlike(value: dict[Any, Any]) -> Iterator[Any]:
    """The keys without those of tensors that have the shape of an earlier one."""
    shapes = {item.shape: key for key, item in reversed(value.items()) if isinstance(item, Tensor)}
    return (key for key, item in value.items() if not isinstance(item, Tensor) or shapes[item.shape] == key)


def mutations_of(value: Any) -> Iterator[Mutation]:
    """The mutations that apply to a value, by its kind."""
    if isinstance(value, bool):
        yield from FLAGS
    elif isinstance(value, int):
        yield from INTS
    elif isinstance(value, float):
        yield from FLOATS
    elif isinstance(value, str):
        yield from TEXTS
    elif isinstance(value, torch.dtype):
        yield from DTYPES
    elif isinstance(value, torch.device):
        yield from DEVICES
    elif isinstance(value, Tensor):
        yield from TENSORS
        yield from (
            FLOATING_TENSORS if value.is_floating_point() else INTEGER_TENSORS if value.dtype != torch.bool else ()
        )
    elif isinstance(value, rg.Graph):
        yield from GRAPHS
    elif isinstance(value, rg.Labels):
        yield from LABELS
    elif isinstance(value, rg.Labeler):
        yield from LABELERS
    elif type(value) in (tuple, list):
        yield from SEQUENCES
        if value:
            yield from map(_first_spoiled, mutations_of(value[0]))
        if len(value) > 1:
            yield from map(_last_spoiled, NONSENSE)
    elif type(value) is dict:
        yield from DICTS
        for key in _unlike(value):
            yield from (_one_spoiled(key, mutation) for mutation in mutations_of(value[key]))
    elif callable(value) and not isinstance(value, nn.Module):
        yield from FUNCTIONS
    else:
        yield from OBJECTS
