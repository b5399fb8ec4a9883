"""Good calls, and the judge of what comes of one when an argument is spoiled.

A *good call* is a callable with arguments that it takes. With one of them spoiled (see ``tests/mutations.py``) it must
give a result, or a TypeError, ValueError or NotImplementedError whose message names the argument, within a second and
without much memory. Some mutations must be refused wherever they come, such as a tensor where a bool belongs.
"""

from __future__ import annotations

import re
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch._dynamo  # some operators load it on first use, which would count as the time of a call
import torch.nested._internal.nested_tensor  # noqa: F401  likewise
from torch import Tensor

from tests.mutations import Mutation

SECONDS = 1.0
"""How long a call may compute, by the clock of its own thread: a busy machine does not count."""

HANGS = 5.0
"""After so many seconds a call is broken off."""

ROOM = 1 << 30
"""How many bytes a call may take beyond those that are taken already."""

REFUSALS = (TypeError, ValueError, NotImplementedError)


class Good(NamedTuple):
    """A call that works.

    Args:
        call: what is called, with all arguments by name.
        arguments: those that are mutated, one by one; leave out what is not to be spoiled by binding it in ``call``.
        also: what a message may call an argument instead, where it reaches in through another one.
        accepts: by argument, the names of mutations that must be refused elsewhere and are fine here.
    """

    call: Callable[..., Any]
    arguments: dict[str, Any]
    also: Mapping[str, tuple[str, ...]] = {}
    accepts: Mapping[str, tuple[str, ...]] = {}


@cache
def _taken_at_first() -> int | None:
    """The bytes of address space that this process had before it spoiled anything; None where nobody tells."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else None


class Hangs(BaseException):
    """A call took so long that it was broken off."""


@contextmanager
def held_back() -> Iterator[None]:
    """Little memory and little time: what asks for more fails here and not the machine."""

    def give_up(*_: Any) -> None:
        raise Hangs

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = _taken_at_first()
    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, HANGS)
    if taken is not None:
        resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if taken is not None:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def used(result: Any) -> Any:
    """A result that was looked at: what is made lazily must not hang when it is asked for."""
    for name in ("num_labels", "names"):
        getattr(result, name, None)
    repr(result)
    return result


def fault(good: Good, argument: str, mutation: Mutation) -> str | None:
    """Say what is wrong with a good call with one argument spoiled; None if nothing is."""
    try:
        value = mutation.change(good.arguments[argument])
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # there is no such thing of this value, such as a nested tensor of bools
    accepted = good.accepts.get(argument, ())  # an entry is an entry, first or last
    refused = mutation.refused and mutation.name.replace("last", "first") not in accepted
    told = f"{argument} = {_shown(value)} ({mutation.name})"
    start = time.thread_time()
    try:
        with held_back():
            used(good.call(**{**good.arguments, argument: value}))
    except REFUSALS as error:
        problem = None if _names(str(error), (argument, *good.also.get(argument, ()))) else "does not name the argument"
        came = f"{type(error).__name__}: {error}"
    except (Exception, Hangs) as error:  # of any kind, as any other kind is a fault
        problem = "hangs" if isinstance(error, Hangs) else "is of the wrong kind"
        came = f"{type(error).__name__}: {error}"
    else:
        problem, came = ("is taken" if refused else None), "a result"
    seconds = time.thread_time() - start
    if problem is None and seconds > SECONDS:  # once may be a collection of garbage, or what is loaded on first use
        again = _seconds_again(good, {**good.arguments, argument: value})
        problem = f"takes {seconds:.1f} and {again:.1f} seconds" if again > SECONDS else None
    return None if problem is None else f"{told}: {problem}: {_cut(came)}"


def _seconds_again(good: Good, arguments: dict[str, Any]) -> float:
    """Time the same call once more."""
    start = time.thread_time()
    with suppress(Exception, Hangs), held_back():
        used(good.call(**arguments))
    return time.thread_time() - start


def _names(message: str, names: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in names)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<{value.dtype} {value.layout} {'nested' if value.is_nested else list(value.shape)} {value.device}>"
    try:
        return _cut(repr(value), 60)
    except ValueError:  # an int of more digits than Python prints
        return f"<{type(value).__name__}>"


def _cut(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]} ..."
