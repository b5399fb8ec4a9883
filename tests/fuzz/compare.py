"""Implementations held to the oracle: values, gradients, and who refuses what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

import relgraph as rg
from relgraph.call import check_call
from relgraph.call.operands import POSITIONAL
from relgraph.functional.attention import answer_to
from relgraph.functional.sink import with_sink
from relgraph.impl.native import build
from tests.fuzz import constants
from tests.fuzz.cases import KINDS, Case, draw, given_offset, has_parallel, is_sum, lose_keys, rounded
from tests.fuzz.labels import by_function, stands_alone, sums_edges
from tests.fuzz.oracle import Truth, solve
from tests.fuzz.scores import ARC, GATES, given

IMPLS = ("reference", "dense", "chunked", "edges", *(["native"] if build.missing() is None else []))
"""What every seed runs; ``"native"`` where there are compiled kernels, ``"triton"`` where it is asked for."""


class FuzzError(AssertionError):
    """Something differs from the oracle; notes tell the seed and what was drawn."""


@dataclass
class Run:
    """What an implementation gave: outputs and gradients by the oracle's names."""

    outputs: dict
    grads: dict


def check(seed: int, impls: Sequence[str] = (*IMPLS, "none")) -> list[str]:
    """Hold the implementations to the oracle on the case of a seed.

    Args:
        seed: of the case, the constants and everything else.
        impls: which to run; ``"none"`` is ``impl=None``.

    Returns:
        Those that answered.

    Raises:
        FuzzError: a value, a gradient or a refusal that is not as it must be.
    """
    case = draw(seed)
    lose_keys(case)
    low = Random(f"dtype {seed}").choice([torch.float32] * 4 + [torch.bfloat16, torch.float16])
    triton = "triton" in impls
    if triton and "mask" in case.leaves:  # its kernels hide pairs under such numbers
        case.leaves["mask"].masked_fill_(case.leaves["mask"] < -2.3e38, float("-inf"))
    with constants.drawn(seed, triton=triton) as told, _poisoned(Random(f"poison {seed}").random() < 0.5):
        dtypes = [torch.float64] if case.float64_only else [torch.float64, low]
        answered: list[str] = []
        try:
            for dtype in dtypes:
                drawn = case if dtype.itemsize > 2 else rounded(case, dtype)
                truth = solve(drawn, dtype)
                if dtype == torch.float16 and _overflows(truth):
                    continue
                answered += [name for name in impls if _check_one(drawn, name, dtype, truth)]
        except Exception as error:
            error.add_note(f"seed {seed}\n{case.describe()}\nconstants {told}")
            raise
    return answered


def _overflows(truth: Truth) -> bool:
    """Whether a number may be larger than float16 holds."""
    most = torch.finfo(torch.float16).max / 2
    return any(bool((x.abs() + truth.bounds[name] > most)[x.isfinite()].any()) for name, x in truth.values.items())


@contextmanager
def _poisoned(on: bool) -> Iterator[None]:
    """Fresh memory full of NaN, so that what is read before it is written shows."""
    if not on:
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _check_one(case: Case, name: str, dtype: torch.dtype, truth: Truth) -> bool:
    """Whether the implementation answered; what it gave is held to the oracle."""
    impl = None if name == "none" else name
    what = f"impl={impl!r} in {str(dtype).removeprefix('torch.')}"
    call = Arguments(case, dtype)
    choice = rg.which_impl(*call.positional, **call.options, **call.more, **call.needs)
    if impl in choice.refused:
        _check_refusal(case, call, name, dtype, choice.refused[name])
        return False
    mode = Random(f"mode {case.seed} {name}").random()
    if mode < 0.15:  # what labels keep from a call that predicts must serve one that trains
        with torch.inference_mode() if mode < 0.1 else torch.no_grad():
            _check_run(f"{what}, no gradients", name, call.run(impl), truth)
    _check_run(what, name, call.run(impl), truth)
    return True


def _check_run(what: str, name: str, run: Run, truth: Truth) -> None:
    """Every output and gradient against the oracle's."""
    for kind, found in (("", run.outputs), ("gradient of ", run.grads)):
        for key, tensor in found.items():
            wanted = ("grad", key) if kind else key
            bound = _running(truth.bounds[wanted]) if name == "triton" and key != "lse" else truth.bounds[wanted]
            _compare(f"{what}: {kind}{key}", tensor, truth.values[wanted], bound)


def _running(bound: Tensor) -> Tensor:
    """The bound where sums by label are differences of running sums: as exact as the whole row, not as its share."""
    return bound + 4 * bound.amax() if bound.numel() else bound


def _compare(what: str, found: Tensor, value: Tensor, bound: Tensor) -> None:
    if found.shape != value.shape:
        raise FuzzError(f"{what} has shape {list(found.shape)}, must be {list(value.shape)}")
    found = found.double()
    if found.numel() == 0:
        return
    if not torch.equal(found.isfinite(), value.isfinite()):
        at = tuple((found.isfinite() != value.isfinite()).nonzero()[0].tolist())
        raise FuzzError(f"{what} is {found[at]} at {at}, must be {value[at]}")
    finite = value.isfinite()
    over = torch.where(finite, (found - value).abs() - bound, 0.0)
    if bool((over > 0).any()):
        at = tuple(torch.unravel_index(over.argmax(), over.shape))
        raise FuzzError(
            f"{what} is {found[at].item():.17g} at {tuple(int(a) for a in at)}, must be {value[at].item():.17g}, "
            f"off by {(found[at] - value[at]).abs().item():.3g} where rounding explains {bound[at].item():.3g}"
        )


def _check_refusal(case: Case, call: Arguments, impl: str, dtype: torch.dtype, reason: str) -> None:
    """A refusal is one that the docs name, and the call raises what the rule tells."""
    if not _may_refuse(case, impl, dtype):
        raise FuzzError(f"impl={impl!r} refuses what it must answer: {reason}")
    try:
        call.run(impl)
    except NotImplementedError as error:
        if str(error) != reason:
            raise FuzzError(f"impl={impl!r} raises {error}, but which_impl tells {reason}") from None
        return
    raise FuzzError(f"impl={impl!r} answers, but which_impl tells {reason}")


def _may_refuse(case: Case, impl: str, dtype: torch.dtype) -> bool:
    """Whether the docs name something in the case that the implementation does not do."""
    if impl == "dense":
        return has_parallel(case.labels)
    if impl == "chunked":
        return has_parallel(case.labels) or case.need_weights
    if impl == "native":
        alone = stands_alone(case.labels)
        additive = case.score is not None and case.score.kind == "additive"
        own = case.score is not None and case.score.curve is ARC
        vectors = "attr" if not alone else "edge_key" if additive else ""
        more = own or vectors in case.leaves
        parallel = has_parallel(case.labels) and not alone
        refused = ["query"] * alone + ["key"] * additive
        batched = any(name[0] in refused and x.dim() == 4 for name, x in case.leaves.items() if isinstance(name, tuple))
        return parallel or case.need_weights or more or batched
    if impl == "edges":
        return not stands_alone(case.labels) or case.need_weights
    if impl == "triton":
        more = not {"attr", "maps", "bases", *GATES}.isdisjoint(case.leaves) or "mask" in case.learned
        tables = {name: x for name, x in case.leaves.items() if isinstance(name, tuple)}
        more = more or any(name[0] == "rows" or x.dim() == 4 - (name[0] == "bias") for name, x in tables.items())
        more = more or by_function(case.labels) or sums_edges(case.labels)
        more = more or (case.need_mass and case.dropout_p > 0.0) or case.score is not None
        return dtype == torch.float64 or case.need_weights or more
    return False


class Arguments:
    """The case as arguments of the front door, leaves fresh."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        self.leaves = {name: self._leaf(name, x) for name, x in case.leaves.items()}
        self.labels = None if case.labels is None else case.labels.build()
        inputs = [self._given(self.leaves[name]) for name in ("query", "key", "value")]
        self.positional = (*inputs, self.labels, *(self._tables(kind) for kind in KINDS))
        self.options: dict[str, Any] = {
            "attn_mask": self._mask(),
            "is_causal": case.is_causal,
            "q_offset": given_offset(case),
            "scale": case.scale,
            "dropout_p": case.dropout_p,
            "enable_gqa": case.heads != case.kv_heads,
        }
        self.more = given(case, self.leaves, self._given)
        self.needs = {"need_weights": case.need_weights, "need_label_mass": case.need_mass}

    def _leaf(self, name: Any, x: Tensor) -> Tensor:
        """The numbers in the dtype and the layout of the case."""
        layout = self.case.layouts.get(name, "plain")
        wider = self.case.mask_dtype if name == "mask" and self.case.mask_dtype else self.dtype
        x = x.to(torch.promote_types(self.dtype, wider))
        if name == "key" and self.case.lost is not None:
            x = x.clone()
            x[..., 0].masked_fill_(self.case.lost, float("-inf"))
        if layout == "transposed":
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == "gaps":
            x = torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]
        else:
            x = x.clone()
        return x.requires_grad_(name in self.case.learned)

    def _given(self, x: Tensor) -> Tensor:
        return x[0].transpose(0, 1) if self.case.frame.packed else x

    def _tables(self, kind: str) -> Any:
        made = tuple(self.leaves.get((kind, part)) for part in range(len(self.case.num_labels)))
        if not is_sum(self.case):
            return made[0] if made else None
        return made if any(table is not None for table in made) else None

    def _mask(self) -> Tensor | None:
        mask = self.case.bool_mask if self.case.bool_mask is not None else self.leaves.get("mask")
        if mask is None:
            return None
        shape = mask.shape[4 - self.case.mask_dims :]
        return mask.reshape(shape) if mask.numel() != 1 else mask.reshape((1,) * self.case.mask_dims)

    def run(self, impl: str | None) -> Run:
        """Outputs of an implementation, laid out as the oracle's, and gradients."""
        case, packed = self.case, self.case.frame.packed
        if case.keep is None:
            z, aux = rg.relation_attention_with_aux(
                *self.positional, **self.options, **self.more, **self.needs, need_lse=True, impl=impl
            )
            mass = aux.label_mass
            mass = () if mass is None else mass if isinstance(mass, tuple) else (mass,)
            outputs = {"z": z, "lse": aux.lse, "weights": aux.weights}
            outputs.update({("mass", part): m for part, m in enumerate(mass)})
            if packed:
                outputs = {name: None if x is None else _unpacked(name, x) for name, x in outputs.items()}
        else:
            outputs = _with_keep(self, impl)
        outputs = {name: x for name, x in outputs.items() if x is not None}
        missing = set(case.incoming) - set(outputs)
        if missing:
            raise FuzzError(f"impl={impl!r} gives no {missing}")
        return Run({name: x.detach() for name, x in outputs.items()}, self._grads(outputs))

    def _grads(self, outputs: dict) -> dict:
        learned = {name: leaf for name, leaf in self.leaves.items() if name in self.case.learned}
        taken = {name: outputs[name] for name in self.case.incoming if outputs[name].requires_grad}
        if not learned or not taken:
            return {}
        incoming = [self.case.incoming[name].to(x.dtype) for name, x in taken.items()]
        grads = torch.autograd.grad(list(taken.values()), list(learned.values()), incoming, allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(learned.items(), grads, strict=True)
        }


def _unpacked(name: Any, x: Tensor) -> Tensor:
    """``[B, H, N, ...]`` from what a packed call gives."""
    return x[None] if name == "weights" else x.transpose(0, 1)[None]


def _with_keep(call: Arguments, impl: str | None) -> dict:
    """The outputs under a given dropout mask: the private hook that makes dropout comparable."""
    given = dict(zip(POSITIONAL, call.positional, strict=True))
    wanted = {"need_weights": call.case.need_weights, "need_label_mass": call.case.need_mass}
    checked = check_call({**given, **call.options, **call.more, **wanted})
    keep = call.case.keep.to(call.dtype)
    answer = with_sink(answer_to(replace(checked, keep=keep), impl), call.more["sink"])
    outputs = {"z": answer.output, "lse": answer.lse, "weights": answer.weights}
    outputs.update({("mass", part): m for part, m in enumerate(answer.mass or ())})
    return outputs
