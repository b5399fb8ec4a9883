"""Edge states in multi-head attention over listed pairs, and in an encoder layer around it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from relgraph.functional.region import active
from relgraph.labels import EdgeLabels
from relgraph.nn.edge_states.listed import Listed
from relgraph.nn.edge_states.relational import RelationalEdges

_DEFAULTS = (None, False)


class Pending(NamedTuple):
    """What the next states are made of, until the new nodes are known."""

    states: RelationalEdges
    edge: Tensor  # [E, F], sorted by target
    listed: Listed

    def finish(self, x: Tensor) -> Tensor:
        """The next states ``[E, F]``, in the order of the labels' edges; ``x`` ``[..., width]``, the new nodes."""
        new = self.states._update(self.edge, x.reshape(-1, x.shape[-1]), self.listed)
        return self.listed.unsort(new)


def check_fits(layer: Any, given: dict[str, Any]) -> None:
    """Raise unless an attention with edge states has only options that make sense there."""
    if layer.num_kv_heads != layer.num_heads or (layer.kdim, layer.vdim) != (layer.embed_dim,) * 2:
        raise NotImplementedError("kdim, vdim and num_kv_heads must be left out with edge_update")
    if layer.tables is not None:
        raise NotImplementedError(
            f"num_labels, labelers with labels and tables must be left out with edge_update, got {layer.tables}: add "
            "an embedding of the label to edge_attr"
        )
    _refuse(given)


def _refuse(given: dict[str, Any]) -> None:
    """Raise NotImplementedError if one of these arguments is given."""
    for name, value in given.items():
        if not any(value is default for default in _DEFAULTS):
            raise NotImplementedError(f"{name} must be left out with edge_update, got {type(value).__name__}")


def check_call(given: dict[str, Any]) -> None:
    """Raise unless a call of an attention with edge states has only arguments that make sense there."""
    _refuse(given)
    if active() is not None:
        raise NotImplementedError("edge_update has no form within context_parallel")


def check_listed(labels: Any, batch: int) -> EdgeLabels:
    """Return ``labels``; raise unless they list all pairs that attend, in each batch row by themselves."""
    if labels.default is not None:
        raise NotImplementedError(
            "labels must have default=None with edge_update: only listed edges have a state; to let all pairs of a "
            "graph attend, list them, as rg.Graph.pairs does"
        )
    if batch > 1 and labels.batch is None:
        raise ValueError(
            "labels must have a batch axis, or be packed, as the states of edges differ between batch rows, "
            f"got {labels!r}"
        )
    return labels
