"""Recording the attention of every attention layer inside a model while a ``with`` block runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from relgraph.arguments import check
from relgraph.functional import AttentionAux
from relgraph.nn.attention import RelationAttention

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and keyword arguments of a layer's call."""


class Wanted(NamedTuple):
    """Options: which results to record."""

    label_mass: bool
    weights: bool


class Recorder(NamedTuple):
    """How to record the calls of one class of layers."""

    # (layer, the caller's arguments, what to record) → arguments that make the layer return that too
    request: Callable[[Any, Arguments, Wanted], Arguments]
    # (layer, the caller's arguments, the arguments used, output) → (the caller's output, what to record)
    split: Callable[[Any, Arguments, Arguments, Any], tuple[Any, AttentionAux]]


RECORDERS: dict[type[nn.Module], Recorder] = {}
"""By class of layer; ``relgraph.pyg`` adds its own."""


def record_attention(
    model: nn.Module, *, label_mass: bool = True, weights: bool = False
) -> AbstractContextManager[dict[str, list[AttentionAux]]]:
    """Record what each attention layer inside a model attends to, per call, while a ``with`` block runs.

    It records every :class:`~relgraph.RelationAttention` in the model, including those within encoder and decoder
    layers, stacks, :class:`~relgraph.RelationTransformer` and :class:`~relgraph.pyg.RelationGlobalAttention`, and every
    :class:`~relgraph.pyg.RelationConv` and :class:`~relgraph.pyg.RelationHeteroConv`. The model's outputs
    change by rounding at most. Recording ends with the block, even if the block raises.

    A block records the calls of the thread that opened it, and of threads that have no block open, such as those of a
    pool. If several threads record, each opens its own block and finds its own calls in it.

    Label masses cost n · R elements per head and call, in any implementation. Weights cost n² elements. To get them,
    ``impl=None`` takes ``"dense"`` (for parallel edges ``"reference"``), whose output may differ in the last digits and
    whose dropout draws other numbers; an ``impl`` that never has all weights in memory, such as ``"chunked"``, raises.
    Compiled models run without compilation in the block. Recorded tensors are detached, and stay on their device until
    you drop the record.

    Args:
        model: any module; it may itself be such a layer, whose name is then ``""``.
        label_mass: whether to record how much attention each label receives.
        weights: whether to record the attention weights.

    Returns:
        A context manager. It gives a dict from the name of each layer in ``model.named_modules()`` to a list of one
        :class:`~relgraph.functional.AttentionAux` per call, with ``label_mass`` and ``weights`` before dropout. Mass is
        ``[B, H, N_q, R]``, or ``[H, N_q, R]`` for packed labels, inputs without a batch and a RelationConv (a tuple for
        a sum, None for a layer without tables), so ``.mean(-2)`` is always the mean over queries. Weights are ``[B, H,
        N_q, N_k]``, packed or without a batch ``[H, N_q, N_k]``, and for a RelationConv or a layer with edge states
        ``[E, H]``, as in PyG's layers; edge states have no mass.
        For a RelationHeteroConv they hold nodes and edges of all kinds end to end, in the order of its metadata.

    Raises:
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
    layers = {name: layer for name, layer in model.named_modules() if _recorder(layer) is not None}
    if not layers:
        kinds = " or ".join(kind.__name__ for kind in RECORDERS)
        got = type(model).__name__
        if type(model).__module__.startswith("transformers."):
            got += ": pass output_attentions=True to its forward, which patched models take too"
        raise ValueError(f"model must hold a layer that reports its attention, {kinds}, got {got}")
    return _recording(layers, wanted)


class _Record(dict[str, list[AttentionAux]]):
    """The calls of each layer, by its name."""

    def __missing__(self, name: str) -> list[AttentionAux]:
        raise KeyError(f"name must be one of {', '.join(map(repr, self))}, got {name!r}")


@contextmanager
def _recording(layers: dict[str, nn.Module], wanted: Wanted) -> Iterator[dict[str, list[AttentionAux]]]:
    record = _Record((name, []) for name in layers)
    thread = threading.get_ident()
    with ExitStack() as stack:
        stack.enter_context(_open_blocks.entered(thread))
        for name, layer in layers.items():
            _add_hooks(layer, wanted, record[name], thread, stack)
        yield record


class _OpenBlocks:
    """The number of open blocks, by the thread that opened them.

    While hooks are installed, compiled code runs uncompiled, as it ignores hooks that were added after compilation.
    Blocks may end in any order, so all share one stance.
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
        """Whether a block that ``thread`` opened records calls of the running thread."""
        running = threading.get_ident()
        return running == thread or self.by_thread[running] == 0


_open_blocks = _OpenBlocks()


def _add_hooks(layer: nn.Module, wanted: Wanted, calls: list[AttentionAux], thread: int, stack: ExitStack) -> None:
    """Append to ``calls`` for each of the layer's calls that a block of ``thread`` records, until the stack closes."""
    recorder = _recorder(layer)
    assert recorder is not None
    pending = threading.local()  # the arguments of each thread's current call

    # torch calls it without kwargs if another thread's block ends, and removes its hooks, at that moment.
    def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Arguments | None:
        pending.call = None  # left over if the last call raised
        if kwargs is None or not _open_blocks.concern(thread):
            return None
        used = recorder.request(layer, (args, kwargs), wanted)
        pending.call = ((args, kwargs), used)
        return used

    def after(layer: nn.Module, _: tuple[Any, ...], *rest: Any) -> Any:
        call, pending.call = getattr(pending, "call", None), None
        if call is None:  # not for this block, or already running when it began
            return None
        given, used = call
        out, aux = recorder.split(layer, given, used, rest[-1])
        weights, mass = tree_map_only(Tensor, Tensor.detach, (aux.weights, aux.label_mass))
        calls.append(AttentionAux(weights if wanted.weights else None, mass if wanted.label_mass else None))
        return out

    stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
    # prepended, so that inner blocks split first
    stack.callback(layer.register_forward_hook(after, with_kwargs=True, prepend=True).remove)


def _recorder(layer: nn.Module) -> Recorder | None:
    return next((recorder for kind, recorder in RECORDERS.items() if isinstance(layer, kind)), None)


_FLAGS = ("need_weights", "need_label_mass")
_AVERAGE = "average_attn_weights"


def _request(layer: RelationAttention, given: Arguments, wanted: Wanted) -> Arguments:
    args, kwargs = given
    mass = wanted.label_mass and layer.tables is not None
    more = {name: True for name, want in zip(_FLAGS, (wanted.weights, mass), strict=True) if want}
    more = {name: value for name, value in more.items() if kwargs.get(name, False) is False}
    if kwargs.get(_AVERAGE) is True and wanted.weights:
        more[_AVERAGE] = False
    return args, kwargs | more


def _split(layer: RelationAttention, given: Arguments, used: Arguments, out: Any) -> tuple[Any, AttentionAux]:
    results = out if isinstance(out, tuple) else (out,)
    first = 1 if layer.edge_states is None else 2  # then the states of edges come second
    always, extra = results[:first], results[first:]
    found = dict(zip((name for name in _FLAGS if used[1].get(name)), extra, strict=True))
    aux = AttentionAux(found.get("need_weights"), found.get("need_label_mass"))
    if given[1].get(_AVERAGE) and not used[1][_AVERAGE]:
        found["need_weights"] = found["need_weights"].mean(-3)
    asked = [value for name, value in found.items() if given[1].get(name)]
    return (*always, *asked) if asked or first > 1 else always[0], aux


RECORDERS[RelationAttention] = Recorder(_request, _split)
