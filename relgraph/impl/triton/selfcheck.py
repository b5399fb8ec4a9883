"""The self-check: it compares the kernels on a device with ``reference`` before ``impl=None`` uses them there.

An untested compiler or GPU may give wrong values or none. So the kernels compute tiny problems, with values and all
gradients, once per process and :class:`Configuration`. Compiling takes nearly all the time: Triton keeps compiled
kernels on disk, and later processes take milliseconds. The check runs in a separate thread, because grad mode,
inference mode, autocast, modes of torch, default devices, streams and torch.func belong to a thread.

While a call is traced nothing can be checked, and its head size may be unknown. It takes the kernels unless a check of
any size has failed. A traced call uses kernels of another name, which run the check when they run, and raise if it
fails. While a CUDA graph is recorded nothing is checked, because a check would synchronize.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from relgraph.call import Call, Gates, Tables, ValueMap
from relgraph.impl import op
from relgraph.impl.eager import reference
from relgraph.impl.problem import Problem
from relgraph.impl.triton import attend as all_pairs
from relgraph.impl.triton import limits
from relgraph.impl.triton.tiling import product_size
from relgraph.labels import DenseLabels, DistanceLabels, EdgeLabels, Labels
from relgraph.plan import lower
from relgraph.score import DOT, Bilinear, compatibility

HEADS, KV_HEADS, NUM_LABELS = 2, 1, 5

ALLOWED = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-2}
"""The largest error of an output or gradient, as a share of its largest entry; the interpreter has a fifth, or less."""

ALLOWED_TF32 = 1e-2
"""The same for float32 where ``torch.set_float32_matmul_precision`` permits products in TF32."""

LEAVES = ("query", "key", "value", "key_table", "value_table", "query_table", "bias_table")


class Outcome(NamedTuple):
    """The outcome of the check of one configuration.

    Attributes:
        why: what failed, with the figures; None if nothing did.
        worst: the largest error of all, as a share of the largest entry.
        seconds: how long the check took, compiling included.
        trace: the traceback of an exception, or None.
    """

    why: str | None
    worst: float
    seconds: float
    trace: str | None = None


class Configuration(NamedTuple):
    """The configuration that one check covers.

    Attributes:
        device: the GPU.
        dtype: dtype of query, key and value.
        listed: whether the kernels are those over listed pairs.
        size: the larger head size of key and value, rounded up as the kernels round it: each is another program.
        tf32: whether torch permits products of float32 in TF32, which needs other kernels.
    """

    device: torch.device
    dtype: torch.dtype
    listed: bool
    size: int
    tf32: bool = False

    def __str__(self) -> str:
        pairs = "listed pairs" if self.listed else "all pairs"
        dtype = str(self.dtype).removeprefix("torch.")
        tf32 = " in TF32" if self.tf32 else ""
        return f"on {device_name(self.device)}, {dtype}{tf32}, {pairs}, heads of {self.size}"


_outcomes: dict[Configuration, Outcome] = {}
_lock = threading.Lock()


def configuration(query: Tensor, value: Tensor, *, listed: bool) -> Configuration:
    """The configuration of a call on these tensors."""
    size = product_size(max(query.shape[-1], value.shape[-1]))
    return Configuration(query.device, query.dtype, listed, size, limits.uses_tf32(query.dtype))


def remembered(asked: Configuration) -> Outcome | None:
    """The outcome of a check; None if it was not made yet."""
    return _outcomes.get(asked)


def failure(device: torch.device, dtype: torch.dtype, listed: bool) -> str | None:
    """The failure of a check for heads of any size, if there was one; this runs no check."""
    for asked, found in list(_outcomes.items()):
        if asked[:3] == (device, dtype, listed) and found.why is not None:
            return f"heads of {asked.size}: {found.why}"
    return None


# a call that is compiled by torch asks once, while it is traced; the decorator of torch.compiler would import dynamo
failure._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def make_sure(asked: Configuration) -> Outcome | None:
    """The outcome of the check, which is made if it was not; None while a CUDA graph is recorded.

    Threads that come meanwhile wait. A failure gives one warning.

    Raises:
        torch.OutOfMemoryError: there is no room on the device. Nothing is remembered.
    """
    found = _outcomes.get(asked)
    if found is not None:
        return found
    if limits.is_recording(asked.device):
        return None
    with _lock:
        found = _outcomes.get(asked)
        if found is not None:
            return found
        found = _outcomes[asked] = _in_a_thread(asked)
    if found.why is not None:
        instead = "'edges'" if asked.listed else "'dense' or 'chunked'"
        warnings.warn(
            f"the fused GPU kernels of relgraph (impl='triton') failed their self-check {asked}: "
            f"{found.why}. {versions()}. impl=None takes {instead} instead, which is right and slower. "
            "Please report what `python -m relgraph` prints",
            UserWarning,
            stacklevel=2,
        )
    return found


def device_name(device: torch.device) -> str:
    """A device with its product name."""
    if device.type != "cuda":
        return str(device)
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"{device} ({torch.cuda.get_device_name(device)}, compute capability {capability})"


def versions() -> str:
    """The versions that a report needs."""
    import triton

    ours = sys.modules["relgraph"].__version__  # the package is imported last, after all that it holds
    return f"relgraph {ours}, torch {torch.__version__}, triton {triton.__version__}"


def _in_a_thread(asked: Configuration) -> Outcome:
    """The outcome of the check, which runs in a separate thread; see the module."""
    found: list[Outcome | BaseException] = []

    def work() -> None:
        try:
            with _undisturbed(asked.device):
                found.append(_check(asked))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, name="relgraph self-check", daemon=True)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


@contextlib.contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Set up the new thread: this device, backward in this thread, and permission to synchronize.

    Backward in another thread could wait for a thread that waits for this check.
    """
    with torch.autograd.set_multithreading_enabled(False):
        if device.type != "cuda":
            yield
            return
        mode = torch.cuda.get_sync_debug_mode()  # of the whole process
        torch.cuda.set_sync_debug_mode("default")
        try:
            with torch.cuda.device(device):
                yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def _check(asked: Configuration) -> Outcome:
    """Compare values and gradients of all problems of a family."""
    device, dtype, listed, size, _ = asked
    began, worst, wrong = time.perf_counter(), 0.0, []
    try:
        for name, (labels, more) in _problems(listed).items():
            inputs = _inputs(labels, more, dtype, size)
            mine = _solve(labels.to(device), {key: x.to(device) for key, x in inputs.items()}, ours=True)
            truth = _solve(labels, {key: x.double() for key, x in inputs.items()}, ours=False)
            for what, wanted in truth.items():
                got = mine[what].cpu().double()
                error = ((got - wanted).abs().max() / wanted.abs().max()).item()
                worst = error if error != error else max(worst, error)
                if not error <= allowed(dtype):  # NaN is too far from everything
                    wrong.append(f"{name}, {what}: {error:.1e}")
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a kernel that does not compile or launch: all errors of Triton's
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        why = f"{type(error).__name__}: {first[:300]}"
        return Outcome(why, worst, time.perf_counter() - began, traceback.format_exc())
    why = None
    if wrong:
        more = "" if len(wrong) <= 3 else f" and {len(wrong) - 3} more"
        share = f"errors as a share of the largest entry, at most {allowed(dtype):g} allowed"
        why = f"{'; '.join(wrong[:3])}{more} ({share})"
    return Outcome(why, worst, time.perf_counter() - began)


def allowed(dtype: torch.dtype) -> float:
    """The largest error that counts as a pass."""
    return ALLOWED_TF32 if limits.uses_tf32(dtype) else ALLOWED[dtype]


def _problems(listed: bool) -> dict[str, tuple[Labels, tuple[str, ...]]]:
    """Labels, and what a call has apart from tables, by name: tiles of all sorts, a row without edges, odd lengths."""
    generator = torch.Generator().manual_seed(0)
    if listed:
        edge_index = torch.randint(1, 40, (2, 150), generator=generator)
        ids = torch.randint(-1, NUM_LABELS, (150,), generator=generator)
        edges = EdgeLabels(edge_index, ids, NUM_LABELS, q_len=40)
        return {
            "edges": (edges, ()), "edges with gates": (edges, ("key_gate", "value_gate")),
            "edges with maps": (edges, ("value_map", "score.weight")),
        }  # fmt: skip
    # keys on both sides of the queries: whole tiles of one label to the left and to the right of the diagonal
    distances = DistanceLabels(70, 300, lookup=range(NUM_LABELS), left=NUM_LABELS // 2, q_offset=120)
    ids = torch.randint(-1, NUM_LABELS, (1, 90, 90), generator=generator)
    return {"distances": (distances, ()), "written-out labels": (DenseLabels(ids, NUM_LABELS), ("causal", "attn_mask"))}


def _inputs(labels: Labels, more: tuple[str, ...], dtype: torch.dtype, size: int) -> dict[str, Tensor]:
    """All tensors, and the gradient of the output, drawn without the generator of the process."""
    generator = torch.Generator().manual_seed(1)
    rows, keys, squares = (1, HEADS, labels.q_len, size), (1, KV_HEADS, labels.k_len, size), (NUM_LABELS, size, size)
    shapes: dict[str, tuple[int, ...]] = dict(
        zip(LEAVES, (rows, keys, keys, *((NUM_LABELS, size),) * 3, (NUM_LABELS,)), strict=True)
    )
    shapes["incoming"] = rows
    others = {
        "key_gate": (NUM_LABELS, size), "value_gate": (NUM_LABELS, size), "value_map": squares, "score.weight": squares,
        "attn_mask": (1, 1, labels.q_len, labels.k_len), "causal": (),
    }  # fmt: skip
    shapes |= {name: others[name] for name in more}
    found = {name: torch.randn(x, generator=generator, dtype=torch.float32, device="cpu") for name, x in shapes.items()}
    # all rows want more of label 0: else the gradient of a bias, summed over all pairs, may cancel down to its rounding
    found["incoming"] += found["value_table"][0]
    for name in {"value_map", "score.weight"} & set(more):
        found[name] *= size**-0.5
    return {name: x.to(dtype) for name, x in found.items()}


def _solve(labels: Labels, given: dict[str, Tensor], *, ours: bool) -> dict[str, Tensor]:
    """The output and the gradients of all inputs, by the kernels or by the reference."""
    leaves = {name: x.requires_grad_() for name, x in given.items() if name not in ("incoming", "causal")}
    query, key, value, *tables = (leaves[name] for name in LEAVES)
    maps, weight = leaves.get("value_map"), leaves.get("score.weight")
    gates = Gates(leaves["key_gate"], leaves["value_gate"]) if "key_gate" in leaves else None
    call = Call(
        query, key, value, lower(labels), (Tables(*tables),), query.shape[-1] ** -0.5, leaves.get("attn_mask"),
        "causal" in given, value_map=None if maps is None else ValueMap(None, maps), gates=gates,
        score=DOT if weight is None else compatibility(Bilinear(weight)),
    )  # fmt: skip
    output = (all_pairs.attend if ours else reference.attend)(call).output
    grads = torch.autograd.grad(output, [*leaves.values()], given["incoming"].detach().to(output.dtype))
    return {"output": output.detach(), **{f"gradient of {x}": g for x, g in zip(leaves, grads, strict=True)}}


def _require(listed: bool, problem: Problem) -> None:
    """Make sure of the check where a traced call runs.

    Raises:
        RuntimeError: the check fails.
    """
    asked = configuration(problem.query, problem.value, listed=listed)
    found = make_sure(asked)
    if found is not None and found.why is not None:
        raise RuntimeError(
            f"impl='triton' failed its self-check {asked}: {found.why}. This call was traced before that was known; "
            "trace it again (torch.compiler.reset()), and impl=None takes another implementation, or pass "
            f"impl={'edges' if listed else 'chunked'!r}"
        )


for _name, _listed in (("triton", False), ("triton edges", True)):
    op.plug_again(_name, partial(_require, _listed), _name + limits.CHECKED_WHEN_RUN)
