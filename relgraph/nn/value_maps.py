"""A linear map of the values for each label of one attention, either free or combined from a few bases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from relgraph.arguments import check
from relgraph.arguments.sharding import survives_reshard
from relgraph.nn.scores import check_one_label


class ValueMaps(nn.Module):
    """Learned maps W; a call returns the ``value_map`` argument of :func:`~relgraph.relation_attention`.

    Free maps are one Parameter ``maps`` ``[H, R, D_v, D_v]``. Otherwise each head has K bases, ``bases``
    ``[H, K, D_v, D_v]``, which all labels share, and ``coefficients`` ``[R, K]``: W[r] = Σ_k coefficients[r, k] ·
    bases[k]. Every map begins as the identity, so at first the layer computes what it would without maps. The first
    base is the identity; the others are drawn as in Glorot and Bengio 2010 and begin with coefficients of 0.

    Source: maps as in Busbridge et al. 2019 (RGAT); bases as in Schlichtkrull et al. 2018 (R-GCN), section 2.2.
    """

    maps: nn.Parameter | None
    bases: nn.Parameter | None
    coefficients: nn.Parameter | None

    def __init__(self, num_labels: int, dim: int, heads: int, num_bases: int | None, factory: dict[str, Any]) -> None:
        super().__init__()
        self.num_labels, self.dim, self.heads, self.num_bases = num_labels, dim, heads, num_bases
        count = {"num_labels": num_labels} if num_bases is None else {"value_map": num_bases}
        check.parameter_size(heads * dim * dim, **count)
        shapes = {"maps": (heads, num_labels, dim, dim)}
        if num_bases is not None:
            check.parameter_size(num_labels=num_labels, value_map=num_bases)
            shapes = {"bases": (heads, num_bases, dim, dim), "coefficients": (num_labels, num_bases)}
        for name in ("maps", "bases", "coefficients"):
            parameter = nn.Parameter(torch.empty(shapes[name], **factory)) if name in shapes else None
            self.register_parameter(name, parameter)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Make every map the identity again, and draw further bases anew."""
        if self.maps is not None:
            self.maps.copy_(torch.eye(self.dim, dtype=self.maps.dtype, device=self.maps.device))
            return
        assert self.bases is not None
        assert self.coefficients is not None
        bound = (3.0 / self.dim) ** 0.5
        nn.init.uniform_(self.bases, -bound, bound)
        self.bases[:, 0] = torch.eye(self.dim, dtype=self.bases.dtype, device=self.bases.device)
        self.coefficients.zero_()
        self.coefficients[:, 0] = 1.0

    def forward(self) -> Tensor | tuple[Tensor, Tensor]:
        """The maps ``[H, R, D_v, D_v]``, or coefficients ``[R, K]`` and bases ``[H, K, D_v, D_v]``."""
        if self.maps is not None:
            return survives_reshard(self, self.maps)
        assert self.bases is not None
        assert self.coefficients is not None
        return survives_reshard(self, self.coefficients), survives_reshard(self, self.bases)

    def extra_repr(self) -> str:
        """Sizes, and the number of bases if there are any."""
        bases = "" if self.num_bases is None else f", num_bases={self.num_bases}"
        return f"{self.num_labels}, {self.dim}, heads={self.heads}{bases}"


def make_value_maps(
    value_map: Any, num_labels: Any, dim: int, heads: int, factory: dict[str, Any], name: str = "num_labels"
) -> ValueMaps | None:
    """The maps of ``num_labels`` labels that ``value_map`` asks for, or None; errors call that number ``name``."""
    if isinstance(value_map, str) and value_map == "full":
        raise NotImplementedError(
            "value_map='full' is for rg.pyg.RelationConv; this layer has maps within heads, True or a number of bases"
        )
    if not isinstance(value_map, (bool, int)):
        raise TypeError(f"value_map must be a bool or the number of bases, an int, got {type(value_map).__name__}")
    if value_map is False:
        return None
    if value_map is not True:
        check.integer("value_map", value_map, minimum=1)
    num_labels = check_one_label("value_map", num_labels)
    if num_labels is None:
        raise ValueError(
            f"value_map must be False for a layer without a number of labels, got {value_map} with {name}=None"
        )
    size = {"dim": heads * dim * dim} if value_map is True else {"value_map": value_map}
    check.parameter_size(**{name: num_labels, **size})
    return ValueMaps(num_labels, dim, heads, None if value_map is True else value_map, factory)
