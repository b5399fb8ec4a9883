"""Which edge states a layer has: its argument ``edge_update``."""

from __future__ import annotations

from typing import Any

from relgraph.arguments import check
from relgraph.nn.edge_states.egt import EGTEdges
from relgraph.nn.edge_states.grit import GRITEdges
from relgraph.nn.edge_states.relational import RelationalEdges
from relgraph.nn.edge_states.states import EdgeStates

PRESETS: dict[str, type[EdgeStates]] = {"relational": RelationalEdges, "egt": EGTEdges, "grit": GRITEdges}


def check_edge_update(
    given: Any, edge_dim: int | None, heads: int, head_dim: int, width: int, place: dict[str, Any] | None = None
) -> EdgeStates | None:
    """The edge states that ``edge_update`` asks for, or None; ``width`` is that of the new nodes."""
    if given is False:
        return None
    if not isinstance(given, (bool, str, EdgeStates)):
        names = " or ".join(f"rg.nn.{kind.__name__}" for kind in PRESETS.values())
        raise TypeError(
            f"edge_update must be a bool, one of {list(PRESETS)} or a module, {names}, got {type(given).__name__}"
        )
    if edge_dim is None:
        raise ValueError("edge_dim must be given with edge_update, got None")
    sizes = {"edge_dim": edge_dim, "heads": heads, "head_dim": head_dim}
    if not isinstance(given, EdgeStates):
        name = "relational" if given is True else check.choice("edge_update", given, tuple(PRESETS))
        more = {"width": width} if name == "relational" else {}
        return PRESETS[name](**sizes, **more, **(place or {}))
    sizes |= {"width": width} if isinstance(given, RelationalEdges) else {}
    for name, size in sizes.items():
        if getattr(given, name) != size:
            raise ValueError(f"edge_update must have {name} = {size}, as the layer, got {getattr(given, name)}")
    return given
