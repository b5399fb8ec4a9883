"""Checks of arguments; each error names the argument, what it must be and what it was."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (  # pyright: ignore[reportMissingModuleSource]
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)

from relgraph.arguments.brief import cut, shown
from relgraph.arguments.hints import belongs, in_place_of_graph, in_place_of_tensor

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATING_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

MOST_LABELS = 1 << 20  # labels, or different distances, of a labeler: each has a name
MOST_IDS = (1 << 31) - 1  # ids of labels, to fit into 32 bits, and nodes of a graph, whose pairs then fit into 64 bits
MOST_POSITIONS = 1 << 62  # length of an axis of labels; a distance then fits into 64 bits
MOST_PAIRS = 1 << 32  # pairs that are written out: 65,536 queries and as many keys
MOST_WRITTEN = 1 << 24  # queries or keys, if pairs are written out
MOST_NUMBERS = 1 << 38  # numbers of a tensor; an expanded view may claim more, until a copy writes them out
MOST_GRAPHS = 1 << 24  # graphs of a batch that is given as the graph number of each node
MOST_LEARNED = 1 << 31  # numbers of a parameter; more is refused as a mistake before memory is allocated
PLAIN = (Tensor, torch.nn.Parameter)  # types of tensors that are no subclass, such as a DTensor or a fake tensor
_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 63) - 1
_LARGEST = sys.float_info.max


def can_look_at_data(*tensors: Tensor | None) -> bool:
    """Whether values can be read: not while compiling or exporting, nor on fake or meta tensors."""
    for t in tensors:
        if t is not None and (type(t) not in PLAIN or t.is_meta):
            return False
    return not torch.compiler.is_compiling()


def outside_compiled_code(what: str) -> None:
    """Raise NotImplementedError while tracing, because ``what`` reads data; torch's own error would not help."""
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"{what} looks at data, which torch.compile and torch.export cannot follow: make the labels outside of the "
            "compiled function, labels = labeler(graph), and pass them to it as an argument"
        )


def unmapped(name: str, tensor: Tensor) -> None:
    """Raise NotImplementedError if ``torch.func.vmap`` maps over this tensor, whose values could not be read then."""
    while not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise NotImplementedError(
                f"{name} must not be mapped over by torch.func.vmap: give labels a batch axis of their own (ids "
                "[B, N_q, N_k], batch= of EdgeLabels, q_offset [B]), and map only over inputs and tables, with "
                "impl='reference' or 'dense'"
            )
        tensor = get_unwrapped(tensor)


def has_autocast(device_type: str) -> bool:
    """Whether this kind of device has autocast; torch is asked only about unusual ones, which dynamo cannot trace."""
    return device_type in ("cpu", "cuda") or torch.amp.is_autocast_available(device_type)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype of autocast on this kind of device; None if it is off or missing."""
    if device_type != "cpu" and not has_autocast(device_type):
        return None
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def integer(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``value``; raise an error unless it is an int (not a bool) within the bounds and fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {in_place_of_graph(value)}")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {_digits(value)}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {_digits(value)}")
    if _is_concrete(value) and not _LEAST_INT <= value <= _MOST_INT:
        raise ValueError(f"{name} must fit into 64 bits, got {_digits(value)}")
    return value  # pyright: ignore[reportReturnType]


def length(name: str, value: Any, *, most: int = MOST_POSITIONS) -> int:
    """Return ``value``; raise an error unless it is a length or a count of at most ``most``."""
    return integer(name, value, minimum=0, maximum=most if _is_concrete(value) else None)


def probability(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise an error unless it is in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}{belongs(value)}")
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {_digits(value)}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise an error unless it is finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymFloat)):
        raise TypeError(f"{name} must be a float, got {type(value).__name__}")
    if isinstance(value, torch.SymFloat):
        return value  # pyright: ignore[reportReturnType]
    if not -_LARGEST <= value <= _LARGEST:  # also false for nan
        raise ValueError(f"{name} must be finite, got {_digits(value)}")
    return float(value)


def _is_concrete(value: Any) -> bool:
    """Whether an int may be compared with a limit; dynamo would specialise a symbolic one to be below it."""
    # a shape that torch.export made symbolic is no int; only dynamo shows one as an int
    return isinstance(value, int) and not torch.compiler.is_dynamo_compiling()


def _digits(number: Any) -> str:
    """A number as text; if it has thousands of digits, which Python does not print, its size."""
    if isinstance(number, int) and number.bit_length() > 1024:
        return f"an int of {number.bit_length()} bits"
    return str(number)


def boolean(name: str, value: Any) -> bool:
    """Return ``value``; raise TypeError unless it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def tensor(name: str, value: Any) -> Tensor:
    """Return ``value``; raise an error unless it is a strided tensor of plain numbers."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {in_place_of_tensor(value)}")
    if value.layout != torch.strided or value.is_nested:
        layout, way = value.layout, "call its .to_dense()"
        if value.is_nested:
            layout, way = "nested", "pad it with torch.nested.to_padded_tensor(...)"
        raise ValueError(f"{name} must be a dense Tensor (torch.strided), got a {layout} one: {way}")
    if _is_concrete(value.numel()) and value.numel() > MOST_NUMBERS:
        raise ValueError(f"{name} must hold at most {MOST_NUMBERS:,} numbers, got shape {list(value.shape)}")
    if value.is_quantized:
        raise ValueError(f"{name} must be a Tensor of plain numbers, got {value.dtype}: call its .dequantize()")
    return value


def integer_tensor(name: str, value: Any, *, dim: int | tuple[int, ...]) -> Tensor:
    """Return ``value``; raise an error unless it is an integer tensor with (one of) ``dim`` dimensions."""
    dtype = tensor(name, value).dtype
    if dtype not in INTEGER_DTYPES:
        raise ValueError(f"{name} must have an integer dtype, got {dtype}")
    dims = (dim,) if isinstance(dim, int) else dim
    if value.dim() not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ValueError(f"{name} must have {wanted} dimensions, got shape {list(value.shape)}")
    return value


def floating(name: str, value: Any) -> Tensor:
    """Return ``value``; raise an error unless it is a tensor of floats of 16 bits or more."""
    dtype = tensor(name, value).dtype
    if dtype not in FLOATING_DTYPES:
        least = " of 16 bits or more" if dtype.is_floating_point else ""
        raise ValueError(f"{name} must have a floating dtype{least}, got {dtype}")
    return value


def data(name: str, *tensors: Tensor | None) -> None:
    """Raise ValueError if a tensor is on the device ``meta``, which has no numbers to read."""
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        raise ValueError(f"{name} must hold numbers, got tensors on the device meta, which hold none")


def not_meta(name: str, value: Any) -> None:
    """Do the same as :func:`data` for labels or a graph."""
    if value.device is not None and value.device.type == "meta":
        raise ValueError(f"{name} must hold numbers, got tensors on the device meta, which hold none")


def shaped(tensor: Tensor, *allowed: Sequence[Any]) -> bool:
    """Whether a tensor has one of these shapes; unlike ``in``, this works for dynamo's symbolic sizes."""
    return any(tensor.dim() == len(shape) and tensor.shape == torch.Size(shape) for shape in allowed)


def among(size: Any, *allowed: Any) -> bool:
    """Whether a size is one of these; unlike ``in``, this works if dynamo knows only some of the sizes."""
    return any(size == other for other in allowed)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return ``value``; raise an error unless it is one of ``allowed``."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, one of {list(allowed)}, got {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"unknown {name} {shown(value)}; expected one of {list(allowed)}")
    return value


def items(name: str, value: Any, what: str, *, most: int = MOST_LABELS) -> tuple[Any, ...]:
    """The items of an iterable that is not a string or a tensor; raise an error if there are more than ``most``.

    In the message, ``what`` says what the value must be, such as ``"a sequence of strings"``.
    """
    if isinstance(value, (str, bytes, Tensor)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}")
    try:
        taken = tuple(islice(value, most + 1))
    except TypeError as error:  # an array without axes is an Iterable too
        raise TypeError(f"{name} must be {what}, got {type(value).__name__}: {error}") from None
    if len(taken) > most:
        raise ValueError(f"{name} must hold at most {most} items, got more")
    return taken


def device(name: str, value: Any) -> torch.device:
    """The device that ``value`` names; raise an error unless torch can use it here."""
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        raise TypeError(f"{name} must be a torch.device or its name, got {type(value).__name__}")
    try:
        found = torch.device(integer(name, value, minimum=0) if isinstance(value, int) else value)
        if found.type not in ("cpu", "meta"):
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # AssertionError if torch was not built for it
        reason = cut(str(error).partition("\n")[0])
        raise ValueError(f"{name} must be a device that torch can use here, got {shown(value)}: {reason}") from None
    return found


def numbered_pairs(names: str, *lengths: int) -> None:
    """Raise ValueError if axes of these lengths make more pairs than fit into 64 bits."""
    if all(map(_is_concrete, lengths)) and math.prod(lengths) > _MOST_INT:
        raise ValueError(f"{names} must make fewer than 2^63 pairs, got {' · '.join(map(str, lengths))}")


def most_labels(names: str, count: int) -> None:
    """Raise ValueError if the arguments ``names`` make more than ``MOST_LABELS`` labels."""
    if _is_concrete(count) and count > MOST_LABELS:
        raise ValueError(f"{names} must make at most {MOST_LABELS:,} labels, got {_digits(count)}")


def most_pairs(names: str, count: int) -> None:
    """Raise ValueError if the arguments ``names`` make more than ``MOST_PAIRS`` pairs."""
    if _is_concrete(count) and count > MOST_PAIRS:
        raise ValueError(f"{names} must make at most {MOST_PAIRS:,} pairs, which are written out, got {_digits(count)}")


def written(names: str, *lengths: int) -> None:
    """Raise ValueError unless all pairs on axes of these lengths can be written out."""
    if all(map(_is_concrete, lengths)) and max(lengths) > MOST_WRITTEN:
        raise ValueError(f"{names} must be at most {MOST_WRITTEN:,} if pairs are written out, got {max(lengths)}")
    most_pairs(names, math.prod(lengths))


def id_range(name: str, ids: Tensor, num_labels: int, *, minimum: int = -1) -> None:
    """Raise ValueError unless all ids are in ``[minimum, num_labels)``; -1 means no label."""
    unmapped(name, ids)
    if ids.numel() == 0 or not can_look_at_data(ids):
        return
    low, high = _bounds(ids)
    if low < minimum or high >= num_labels:
        hint = f": ids count from 0, and num_labels is {num_labels}" if name == "ids" and low >= minimum else ""
        raise ValueError(f"{name} must lie in [{minimum}, {num_labels}), got values from {low} to {high}{hint}")


def all_below(ids: Tensor, stop: int) -> bool:
    """Whether all ids are known to be in ``[0, stop)``; False if nothing is known."""
    if not can_look_at_data(ids) or is_functorch_wrapped_tensor(ids) or ids.numel() == 0:
        return False
    low, high = _bounds(ids)
    return low >= 0 and high < stop


def _bounds(ids: Tensor) -> tuple[int, int]:
    """The smallest and the largest of some ids."""
    low, high = torch.aminmax(ids)
    return int(low), int(high)


def same_device(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all given tensors are on one device."""
    first_name, first = "", None
    for name, value in tensors.items():
        if value is None:
            continue
        if first is None:
            first_name, first = name, value
        elif value.device != first.device:
            raise ValueError(f"{name} must be on the device of {first_name}, {first.device}, got {value.device}")


def same_dtype(**tensors: Tensor | None) -> None:
    """Raise ValueError unless all given tensors have one dtype, or autocast chooses it."""
    (first_name, first), *others = [(name, x) for name, x in tensors.items() if x is not None]
    for name, value in others:
        if value.dtype != first.dtype and autocast_dtype(value.device.type) is None:
            raise ValueError(f"{name} must have the dtype of {first_name}, {first.dtype}, got {value.dtype}")


def parameter_place(where: Any, dtype: Any) -> dict[str, Any]:
    """``device`` and ``dtype`` of a parameter as keyword arguments, checked; each may be None."""
    if where is not None:
        device("device", where)
    if dtype is not None:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype or None, got {type(dtype).__name__}")
        if dtype not in FLOATING_DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(map(str, FLOATING_DTYPES))}, got {dtype}")
    return {"device": where, "dtype": dtype}


def parameter_size(factor: int = 1, /, **sizes: int) -> None:
    """Raise ValueError if a parameter of these sizes is beyond ``MOST_LEARNED``; the error names the largest size."""
    numbers = factor * math.prod(sizes.values())
    if numbers > MOST_LEARNED:
        name = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{name} must be smaller, as no parameter may hold more than {MOST_LEARNED:,} numbers, "
            f"got {_digits(sizes[name])}, for one of {_digits(numbers)}"
        )
