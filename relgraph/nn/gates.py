"""A vector for each label of one attention that multiplies the keys, the values or both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.arguments.sharding import survives_reshard
from relgraph.nn.scores import check_one_label
from relgraph.score import compatibility


class LabelGates(nn.Module):
    """Learned gates; a call returns the arguments ``key_gate`` and ``value_gate`` of attention.

    Each is ``[H, R, D]`` or None. Gates begin at one, so at first the layer computes what it would without them.

    Source: DistMult, Yang et al. 2015; Huang et al. 2020, method 4.
    """

    key: nn.Parameter | None
    value: nn.Parameter | None

    def __init__(self, key: bool, value: bool, sizes: tuple[int, int, int], factory: dict[str, Any]) -> None:
        super().__init__()
        for name, wanted in (("key", key), ("value", value)):
            self.register_parameter(name, nn.Parameter(torch.ones(sizes, **factory)) if wanted else None)

    def reset_parameters(self) -> None:
        """Set every gate to one again."""
        for gate in self.parameters():
            nn.init.ones_(gate)

    def forward(self) -> dict[str, Tensor]:
        """The gates that there are, by the names of the arguments."""
        named = (("key_gate", self.key), ("value_gate", self.value))
        return {name: survives_reshard(self, gate) for name, gate in named if gate is not None}

    def extra_repr(self) -> str:
        """The arguments that are given."""
        return ", ".join(f"{name}={list(gate.shape)}" for name, gate in self.named_parameters())


def make_gates(
    key_gate: Any, value_gate: Any, num_labels: Any, dim: int, heads: int, layer: Any, factory: dict[str, Any]
) -> LabelGates | None:  # fmt: skip
    """The gates of ``num_labels`` labels that are wanted, or None; they fit score and maps of the layer."""
    if check.boolean("key_gate", key_gate) and compatibility(layer.score).replaces_dot:
        raise ValueError(f"key_gate must be False with score={type(layer.score).__name__}: it is for dot products")
    if key_gate and layer.rotary is not None:
        raise ValueError("key_gate must be False with rotary: it would multiply keys that are turned already")
    if check.boolean("value_gate", value_gate) and layer.value_map is not None:
        raise ValueError("value_gate must be False with a value_map, whose matrices can hold it on their diagonal")
    if not (key_gate or value_gate):
        return None
    one = "key_gate" if key_gate else "value_gate"
    labels = check_one_label(one, num_labels)
    if labels is None:
        raise ValueError(f"{one} must be False for a layer without a number of labels, got True with num_labels=None")
    check.parameter_size(heads * dim, num_labels=labels)
    return LabelGates(key_gate, value_gate, (heads, labels, dim), factory)
