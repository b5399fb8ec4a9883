"""Checks at the door: each names the argument, what it must be and what came instead."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)

from relgraph.arguments.brief import cut, shown
from relgraph.arguments.hints import in_place_of_graph

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATING_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

MOST_LABELS = 1 << 20
"""How many labels a labeler has at most, and how many distances it tells apart: each has a name."""

MOST_IDS = (1 << 31) - 1
"""How many ids labels count at most, which 32 bits hold, and how many nodes a graph has, whose pairs 64 bits number."""

MOST_POSITIONS = 1 << 62
"""How long an axis of labels is at most: a distance then fits into 64 bits."""

MOST_PAIRS = 1 << 32
"""How many pairs are written out at most, those of 65,536 queries and as many keys."""

MOST_NUMBERS = 1 << 38
"""How many numbers a tensor holds at most: a view of one number may claim more, until a copy writes them out."""

MOST_GRAPHS = 1 << 24
"""How many graphs a batch holds at most, where the number of a node's graph says how many there are."""

MOST_LEARNED = 1 << 31
"""How many numbers a parameter may hold: more is taken for a mistake before memory is asked for."""

MOST_WRITTEN = 1 << 24
"""How many queries or keys there are at most where pairs are written out."""

_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 63) - 1
_LARGEST = sys.float_info.max


def can_look_at_data(*tensors: Tensor | None) -> bool:
    """Whether values may be inspected: not while compiling or exporting, nor on fake or meta tensors."""
    if torch.compiler.is_compiling():
        return False
    return all(t is None or (type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta) for t in tensors)


def outside_compiled_code(what: str) -> None:
    """What has to look at data is not traced: refused with the way out, where torch would say what it cannot guard."""
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{what} looks at data, which torch.compile and torch.export cannot follow: make the labels outside of the "
            "compiled function, labels = labeler(graph), and pass them to it as an argument"
        )


def unmapped(name: str, tensor: Tensor) -> None:
    """``torch.func.vmap`` does not map over this tensor, whose values could not be looked at then."""
    while not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise NotImplementedError(
                f"{name} must not be mapped over by torch.func.vmap: give labels a batch axis of their own, ids "
                "[B, N_q, N_k] (or batch= of EdgeLabels), and map over inputs and tables alone, with "
                "impl='reference' or 'dense'"
            )
        tensor = get_unwrapped(tensor)


def has_autocast(device_type: str) -> bool:
    """Whether there is autocast for this kind of device; the usual ones are not asked, which dynamo could not trace."""
    return device_type in ("cpu", "cuda") or torch.amp.is_autocast_available(device_type)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast computes in on this kind of device; None when it is off, or there is no such thing."""
    if not has_autocast(device_type) or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def integer(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """``value`` itself when it is an int (not a bool) within the bounds, and one that a tensor can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {in_place_of_graph(value)}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {_shown(value)}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {_shown(value)}")
    if _is_known(value) and not _LEAST_INT <= value <= _MOST_INT:
        raise ValueError(f"{name} must fit into 64 bits, got {_shown(value)}")
    return value  # pyright: ignore[reportReturnType]


def length(name: str, value: Any, *, most: int = MOST_POSITIONS) -> int:
    """``value`` itself when it may be the length of an axis, or whatever else is counted up to ``most``."""
    return integer(name, value, minimum=0, maximum=most if _is_known(value) else None)


def probability(name: str, value: Any) -> float:
    """``value`` as a float in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {_shown(value)}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """``value`` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")
    if isinstance(value, torch.SymFloat):
        return value  # pyright: ignore[reportReturnType]
    if not -_LARGEST <= value <= _LARGEST:  # nan is not either
        raise ValueError(f"{name} must be finite, got {_shown(value)}")
    return float(value)


def _is_known(value: Any) -> bool:
    """Whether an int may be held against a limit: one that dynamo keeps open would be fixed below it by that."""
    return isinstance(value, int) and not torch.compiler.is_compiling()


def _shown(number: Any) -> str:
    """A number as text; one of thousands of digits, which Python does not print, by its size."""
    if isinstance(number, int) and number.bit_length() > 1024:
        return f"an int of {number.bit_length()} bits"
    return str(number)


def boolean(name: str, value: Any) -> bool:
    """``value`` itself when it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def tensor(name: str, value: Any) -> Tensor:
    """``value`` itself when it is a tensor of plain numbers, laid out by strides."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout)
        raise ValueError(
            f"{name} must be a dense Tensor (torch.strided), got a {layout} one: {_TO_DENSE[value.is_nested]}"
        )
    if _is_known(value.numel()) and value.numel() > MOST_NUMBERS:
        raise ValueError(f"{name} must hold at most {MOST_NUMBERS:,} numbers, got shape {list(value.shape)}")
    if value.is_quantized:
        raise ValueError(f"{name} must be a Tensor of plain numbers, got {value.dtype}: call its .dequantize()")
    return value


_TO_DENSE = {False: "call its .to_dense()", True: "pad it with torch.nested.to_padded_tensor(...)"}


def integer_tensor(name: str, value: Any, *, dim: int | tuple[int, ...]) -> Tensor:
    """``value`` itself when it is an integer tensor with (one of) that many dimensions."""
    tensor(name, value)
    if value.dtype not in INTEGER_DTYPES:
        raise ValueError(f"{name} must have an integer dtype, got {value.dtype}")
    dims = (dim,) if isinstance(dim, int) else dim
    if value.dim() not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ValueError(f"{name} must have {wanted} dimensions, got shape {list(value.shape)}")
    return value


def floating(name: str, value: Any) -> Tensor:
    """``value`` itself when it is a tensor of floats that can be computed with."""
    dtype = tensor(name, value).dtype
    if dtype not in FLOATING_DTYPES:
        least = " of 16 bits or more" if dtype.is_floating_point else ""
        raise ValueError(f"{name} must have a floating dtype{least}, got {dtype}")
    return value


def data(name: str, *tensors: Tensor | None) -> None:
    """The tensors hold numbers, as what is read or counted must; those on the device ``meta`` hold none."""
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        raise ValueError(f"{name} must hold numbers, got tensors on the device meta, which hold none")


def held(name: str, value: Any) -> None:
    """Labels or a graph whose tensors hold numbers: see :func:`data`."""
    if value.device is not None and value.device.type == "meta":
        raise ValueError(f"{name} must hold numbers, got tensors on the device meta, which hold none")


def shaped(tensor: Tensor, *allowed: Sequence[Any]) -> bool:
    """Whether a tensor has one of these shapes; unlike ``in`` right for sizes that dynamo keeps open too."""
    return any(tensor.dim() == len(shape) and tensor.shape == torch.Size(shape) for shape in allowed)


def among(size: Any, *allowed: Any) -> bool:
    """Whether a size is one of these; unlike ``in`` right where dynamo keeps one of them open and knows the other."""
    return any(size == other for other in allowed)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """``value`` itself when it is one of ``allowed``."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {list(allowed)}, got {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"unknown {name} {shown(value)}; expected one of {list(allowed)}")
    return value


def items(name: str, value: Any, what: str, *, most: int = MOST_LABELS) -> tuple[Any, ...]:
    """The items of an iterable other than a string or a tensor, not more than ``most`` of them.

    ``what`` says in the message what it must be, such as ``"a sequence of strings"``.
    """
    if isinstance(value, (str, bytes, Tensor)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")
    try:
        taken = tuple(islice(value, most + 1))
    except TypeError as error:  # an array of no axes says only here that it holds no items
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}: {error}") from None
    if len(taken) > most:
        raise ValueError(f"{name} must hold at most {most} items, got more")
    return taken


def device(name: str, value: Any) -> torch.device:
    """The device that ``value`` names, when it is one that this torch can use here."""
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        raise TypeError(f"{name} must be a torch.device or its name, got {type(value).__name__}")
    try:
        found = torch.device(integer(name, value, minimum=0) if isinstance(value, int) else value)
        if found.type not in ("cpu", "meta"):
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a device
        reason = cut(str(error).partition("\n")[0])
        raise ValueError(f"{name} must be a device that torch can use here, got {shown(value)}: {reason}") from None
    return found


def numbered_pairs(names: str, *lengths: int) -> None:
    """The lengths called ``names`` make no more pairs than 64 bits number."""
    if all(map(_is_known, lengths)) and prod(lengths) > _MOST_INT:
        shown = " · ".join(map(str, lengths))
        raise ValueError(f"{names} must make fewer than 2^63 pairs, got {shown}")


def most_labels(names: str, count: int) -> None:
    """The arguments called ``names`` make no more labels than can be named."""
    if _is_known(count) and count > MOST_LABELS:
        raise ValueError(f"{names} must make at most {MOST_LABELS:,} labels, got {_shown(count)}")


def most_pairs(names: str, count: int) -> None:
    """The arguments called ``names`` make no more pairs than can be written out."""
    if _is_known(count) and count > MOST_PAIRS:
        raise ValueError(f"{names} must make at most {MOST_PAIRS:,} pairs, which are written out, got {_shown(count)}")


def written(names: str, *lengths: int) -> None:
    """Pairs on axes of these lengths, whose arguments are called ``names``, can be written out."""
    if all(map(_is_known, lengths)) and max(lengths) > MOST_WRITTEN:
        raise ValueError(f"{names} must be at most {MOST_WRITTEN:,} where pairs are written out, got {max(lengths)}")
    most_pairs(names, prod(lengths))


def id_range(name: str, ids: Tensor, num_labels: int, *, minimum: int = -1) -> None:
    """Every id lies in ``[minimum, num_labels)``; -1 is the pair without a label."""
    unmapped(name, ids)
    if ids.numel() == 0 or not can_look_at_data(ids):
        return
    low, high = (int(v) for v in torch.aminmax(ids))
    if low < minimum or high >= num_labels:
        raise ValueError(f"{name} must lie in [{minimum}, {num_labels}), got values from {low} to {high}")


def same_device(**tensors: Tensor | None) -> None:
    """All given tensors live on one device."""
    first_name, first = "", None
    for name, value in tensors.items():
        if value is None:
            continue
        if first is None:
            first_name, first = name, value
        elif value.device != first.device:
            raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {value.device}")


def parameter_place(where: Any, dtype: Any) -> dict[str, Any]:
    """The arguments ``device`` and ``dtype`` by name when parameters can live so; each may be None."""
    if where is not None:
        device("device", where)
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype or None, got {type(dtype).__name__}")
        if dtype not in FLOATING_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(map(str, FLOATING_DTYPES))}, got {dtype}")
    return {"device": where, "dtype": dtype}


def parameter_size(factor: int = 1, /, **sizes: int) -> None:
    """That a parameter of the product of these sizes is not beyond MOST_LEARNED; the largest size is to blame."""
    numbers = factor * math.prod(sizes.values())
    if numbers > MOST_LEARNED:
        name = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{name} must be smaller, as no parameter may hold more than {MOST_LEARNED:,} numbers, "
            f"got {_shown(sizes[name])}, for one of {_shown(numbers)}"
        )
