"""Recording attention: what every attention layer inside a model attends to, while a block runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.functional import AttentionAux
from relgraph.nn.attention import RelationAttention

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a layer is called with, by position and by name."""


class Wanted(NamedTuple):
    """What is to be recorded."""

    label_mass: bool
    weights: bool


class Reporter(NamedTuple):
    """How the layers of one class are made to tell what they attend to.

    Attributes:
        ask: from a layer, its arguments and what is wanted, the arguments that make it give that too.
        tell: from a layer, the arguments that it came with and those that it was called with, and what it gave: what
            the caller asked for, and what there is to record.
    """

    ask: Callable[[Any, Arguments, Wanted], Arguments]
    tell: Callable[[Any, Arguments, Arguments, Any], tuple[Any, AttentionAux]]


REPORTERS: dict[type[nn.Module], Reporter] = {}
"""By class of layer; the module of a layer of another package's kind adds its own."""


def record_attention(
    model: nn.Module, *, label_mass: bool = True, weights: bool = False
) -> AbstractContextManager[dict[str, list[AttentionAux]]]:
    """What each attention layer inside a model attends to, call by call, while a ``with`` block runs.

    Every :class:`~relgraph.RelationAttention` in the model reports, also those within encoder and decoder layers,
    stacks, :class:`~relgraph.RelationTransformer` and :class:`~relgraph.pyg.RelationGlobalAttention`, and every
    :class:`~relgraph.pyg.RelationConv`; a :class:`~relgraph.pyg.RelationHeteroConv` does not. The model gives what it
    gives without, and a layer that is asked for weights or mass by its caller gives them too. After the block nothing
    is recorded any more, also if it raised.

    A block records the calls of the thread that opened it, and of threads that have no block open, such as those of a
    pool. Threads that each record open a block each, and find their own calls in it.

    Label masses cost n · R numbers a head in each call, in any implementation. Weights cost n²: ``impl=None`` takes
    ``"dense"`` for them (for parallel edges ``"reference"``), whose output may differ in the last digits and whose
    dropout draws otherwise; an ``impl`` that never holds all weights, such as ``"chunked"``, refuses. Compiled models
    run without compilation in the block. Tensors are detached, and stay on their device until the record is dropped.

    Args:
        model: any module; may itself be such a layer, then named ``""``.
        label_mass: record the attention by label.
        weights: record the attention weights.

    Returns:
        A context manager, which gives a dict from the name of each layer in ``model.named_modules()`` to a list that
        grows by one :class:`~relgraph.AttentionAux` a call, with ``label_mass`` and ``weights`` as the layer gives
        them, before dropout: mass ``[B, H, N_q, R]``, of packed labels, of inputs without a batch and of a RelationConv
        ``[H, N_q, R]`` (a tuple for a sum; None of a layer without tables), so that ``.mean(-2)`` is always the mean
        over queries; weights ``[B, H, N_q, N_k]``, packed or without a batch ``[H, N_q, N_k]``, of a RelationConv
        ``[E, H]``, as PyG's layers give them.

    Raises:
        TypeError: ``model`` that is no module, or a choice that is no bool.
        ValueError: a model without such a layer, or nothing to record.

    Example:
        >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2))
        >>> model = rg.RelationEncoder(layer, num_layers=3)
        >>> with rg.record_attention(model) as record:
        ...     z = model(torch.randn(2, 7, 16))
        >>> list(record)
        ['layers.0.self_attn', 'layers.1.self_attn', 'layers.2.self_attn']
        >>> record["layers.1.self_attn"][0].label_mass.shape
        torch.Size([2, 4, 7, 5])
        >>> masses = torch.stack([calls[-1].label_mass.mean((0, 2)) for calls in record.values()])
        >>> masses.shape                                # [L, H, R]; rg.plot.label_mass(record) draws the same
        torch.Size([3, 4, 5])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a nn.Module, got {type(model).__name__}")
    wanted = Wanted(check.boolean("label_mass", label_mass), check.boolean("weights", weights))
    if not any(wanted):
        raise ValueError("label_mass or weights must be True, got neither: there is nothing to record")
    layers = {name: layer for name, layer in model.named_modules() if _reporter(layer) is not None}
    if not layers:
        kinds = " or ".join(kind.__name__ for kind in REPORTERS)
        raise ValueError(f"model must hold a layer that reports its attention, {kinds}, got {type(model).__name__}")
    return _recording(layers, wanted)


@contextmanager
def _recording(layers: dict[str, nn.Module], wanted: Wanted) -> Iterator[dict[str, list[AttentionAux]]]:
    record: dict[str, list[AttentionAux]] = {name: [] for name in layers}
    thread = threading.get_ident()
    with ExitStack() as stack:
        stack.enter_context(_open_blocks.entered(thread))
        for name, layer in layers.items():
            _listen(layer, wanted, record[name], thread, stack)
        yield record


class _OpenBlocks:
    """The blocks that are open, counted by the thread that opened them.

    While there are any, compiled code, which does not look for hooks that came after it, runs uncompiled. Blocks need
    not end in the order in which they began, so that one stance serves them all.
    """

    def __init__(self) -> None:
        self.by_thread: Counter[int] = Counter()
        self.stance = ExitStack()
        self.lock = threading.Lock()

    @contextmanager
    def entered(self, thread: int) -> Iterator[None]:
        with self.lock:
            if not self.by_thread:
                self.stance.enter_context(torch.compiler.set_stance("force_eager"))
            self.by_thread[thread] += 1
        try:
            yield
        finally:
            with self.lock:
                self.by_thread[thread] -= 1
                self.by_thread += Counter()  # keeps those above 0
                if not self.by_thread:
                    self.stance.close()

    def concern(self, thread: int) -> bool:
        """Whether calls of the running thread are for a block that ``thread`` opened."""
        running = threading.get_ident()
        return running == thread or self.by_thread[running] == 0


_open_blocks = _OpenBlocks()


def _listen(layer: nn.Module, wanted: Wanted, calls: list[AttentionAux], thread: int, stack: ExitStack) -> None:
    """Add what each call of the layer attends to that concerns a block of ``thread``, until the stack is closed."""
    reporter = _reporter(layer)
    assert reporter is not None
    pending = threading.local()  # the arguments of the call that each thread is in

    # Without kwargs where another thread's block ends, and takes its hooks away, while torch is about to call them.
    def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Arguments | None:
        pending.call = None  # a call that raised has left its own behind
        if kwargs is None or not _open_blocks.concern(thread):
            return None
        asked = reporter.ask(layer, (args, kwargs), wanted)
        pending.call = ((args, kwargs), asked)
        return asked

    def after(layer: nn.Module, _: tuple[Any, ...], *rest: Any) -> Any:
        out = rest[-1]
        call, pending.call = getattr(pending, "call", None), None
        if call is None:  # not for this block, or under way when it began
            return None
        came, asked = call
        out, aux = reporter.tell(layer, came, asked, out)
        calls.append(_detached(aux, wanted))
        return out

    stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
    # Before all other hooks, so that each sees what it asked for: the last to ask is the first to be told.
    stack.callback(layer.register_forward_hook(after, with_kwargs=True, prepend=True).remove)


def _reporter(layer: nn.Module) -> Reporter | None:
    return next((reporter for kind, reporter in REPORTERS.items() if isinstance(layer, kind)), None)


def _detached(aux: AttentionAux, wanted: Wanted) -> AttentionAux:
    mass = aux.label_mass
    if mass is not None:
        mass = mass.detach() if isinstance(mass, Tensor) else tuple(part.detach() for part in mass)
    weights = None if aux.weights is None else aux.weights.detach()
    return AttentionAux(weights if wanted.weights else None, mass if wanted.label_mass else None)


_FLAGS = ("need_weights", "need_label_mass")


def _ask(layer: RelationAttention, came: Arguments, wanted: Wanted) -> Arguments:
    args, kwargs = came
    mass = wanted.label_mass and layer.tables is not None
    more = {name: True for name, want in zip(_FLAGS, (wanted.weights, mass), strict=True) if want}
    return args, kwargs | {name: value for name, value in more.items() if kwargs.get(name, False) is False}


def _tell(_: RelationAttention, came: Arguments, asked: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    z, *extra = out if isinstance(out, tuple) else (out,)
    given = dict(zip((name for name in _FLAGS if asked[1].get(name)), extra, strict=True))
    kept = [value for name, value in given.items() if came[1].get(name)]
    return (z, *kept) if kept else z, AttentionAux(given.get("need_weights"), given.get("need_label_mass"))


REPORTERS[RelationAttention] = Reporter(_ask, _tell)
