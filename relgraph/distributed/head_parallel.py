"""Tensor parallelism of attention: each process holds some heads of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils._pytree import tree_map

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.call.operands import weight_of
from relgraph.nn import LabelTable, RelationAttention
from relgraph.score import compatibility

_INPUTS = ("query", "key", "value")


class HeadParallel(ParallelStyle):
    """Split a :class:`~relgraph.RelationAttention` by heads, for torch's ``parallelize_module``.

    Each process projects, attends and reads tables for its share of the heads; the layer ends with one sum over the
    processes. It gives the same result as on one process, and its parameters become DTensors:

    - The projections of queries, keys and values are split at the borders of heads, so a packed ``in_proj_weight``
      becomes ``q_proj_weight``, ``k_proj_weight`` and ``v_proj_weight``, and ``in_proj_bias`` becomes three biases. The
      state of either form loads into the other. ``out_proj`` is split by its inputs; its bias is added once.
    - Tables per head, ``content_bias``, ``position_bias``, ``sink``, gates, maps of edge features, and maps and weights
      of scores per head are split. Parameters that all heads share are whole on every process and get the sum of all
      gradients. A bank is not split.
    - Dropout draws the mask of all heads, from the first process's generator.
    - Weights and masses (``need_weights``, ``need_label_mass``) are gathered. A :class:`~relgraph.KVCache` holds the
      keys of a process's own heads.

    Combine it with torch's ``ColwiseParallel`` and ``RowwiseParallel`` for the linear layers, with
    ``SequenceParallel`` norms (``input_layouts=Shard(1), output_layouts=Shard(1)``), with ``fully_shard`` on another
    axis of the mesh, and with :func:`~relgraph.distributed.context_parallel` on another axis. A layer with a labeler
    labels the length of its input, so if rows are split, pass it a DTensor, or labels of all rows.

    Source: Shoeybi et al. 2019, "Megatron-LM"; conventions of :mod:`torch.distributed.tensor.parallel`.

    Args:
        input_layouts: how processes hold query, key and value that are plain tensors: ``Replicate()``, the default, or
            ``Shard(1)`` for rows that are split (``Shard(0)`` without a batch). DTensors know their layout.
        output_layouts: how processes hold the output; ``Replicate()`` by default.
        use_local_output: whether the output is a plain tensor, the part of this process, instead of a DTensor.

    Raises:
        ValueError: in ``parallelize_module``, on every process: a mesh that does not divide the heads of queries and
            keys or has several axes, an ``out_proj`` other than a Linear, or a layer that is split already.

    Example:
        >>> from torch.distributed import destroy_process_group, init_process_group
        >>> from torch.distributed.device_mesh import init_device_mesh
        >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        >>> init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> layer = rg.RelationEncoderLayer(16, 4, 32, labeler=rg.ClippedDistance(2)).eval()
        >>> x = torch.randn(2, 7, 16)
        >>> before = layer(x)
        >>> plan = {
        ...     "self_attn": rg.distributed.HeadParallel(), "linear1": ColwiseParallel(), "linear2": RowwiseParallel()
        ... }
        >>> layer = parallelize_module(layer, init_device_mesh("cpu", (1,)), plan)
        >>> torch.allclose(layer(x), before, atol=1e-5)
        True
        >>> layer.self_attn.q_proj_weight.placements
        (Shard(dim=0),)
        >>> destroy_process_group()
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        for name, layout in (("input_layouts", input_layouts), ("output_layouts", output_layouts)):
            if layout is not None and not isinstance(layout, Placement):
                raise TypeError(f"{name} must be a Placement, such as Replicate() or Shard(1), got {shown(layout)}")
        self.input_layouts: Placement = input_layouts or Replicate()
        self.output_layouts: Placement = output_layouts or Replicate()
        self.use_local_output = check.boolean("use_local_output", use_local_output)

    def __repr__(self) -> str:
        options = f"input_layouts={self.input_layouts}, output_layouts={self.output_layouts}"
        return f"HeadParallel({options}, use_local_output={self.use_local_output})"

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Split the module; torch's ``parallelize_module`` calls this."""
        layer = _checked(module, device_mesh)
        layer._separate()
        for owner, name, placement in _placements(layer):
            self._distribute(owner, name, device_mesh, placement)
        for table in _tables(layer):
            table.by_heads = True
        layer.register_forward_pre_hook(
            lambda _layer, args, options: self._whole_inputs(args, options, device_mesh), with_kwargs=True
        )
        layer.register_forward_hook(lambda _layer, _args, outputs: self._outputs(outputs))
        return layer

    def _distribute(self, owner: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
        """Make a parameter a DTensor, unless another layer that shares it has done so."""
        parameter = getattr(owner, name)
        if isinstance(parameter, DTensor):
            return
        split = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=self.src_data_rank)
        owner.register_parameter(name, nn.Parameter(split, requires_grad=parameter.requires_grad))

    def _whole_inputs(
        self, args: tuple[Any, ...], options: Mapping[str, Any], mesh: DeviceMesh
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with query, key and value whole on every process, as DTensors."""
        made: dict[int, DTensor] = {}  # arguments that share a tensor share the DTensor

        def whole(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            key = id(x)
            if key not in made:
                if not isinstance(x, DTensor):
                    x = DTensor.from_local(x, mesh, [self.input_layouts], run_check=False)
                made[key] = x.redistribute(placements=[Replicate()])
            return made[key]

        count = len(_INPUTS)
        changed = {name: whole(x) if name in _INPUTS else x for name, x in options.items()}
        return (*map(whole, args[:count]), *args[count:]), changed

    def _outputs(self, outputs: Any) -> Any:
        """The output in the layout that was asked for; weights and masses of all heads."""
        if not isinstance(outputs, tuple):
            return self._as_asked(outputs, self.output_layouts)
        first, *extra = outputs
        whole = tree_map(lambda x: self._as_asked(x, Replicate()), extra)
        return (self._as_asked(first, self.output_layouts), *whole)

    def _as_asked(self, x: DTensor, placement: Placement) -> Tensor:
        x = x.redistribute(placements=[placement])
        return x.to_local() if self.use_local_output else x


def _checked(module: nn.Module, mesh: DeviceMesh) -> RelationAttention:
    """The module; an error if it cannot be split over this mesh."""
    if not isinstance(module, RelationAttention):
        inner = [name for name, part in module.named_modules() if isinstance(part, RelationAttention)]
        hint = f": name {' and '.join(map(repr, inner))} in the plan" if inner else ""
        raise TypeError(f"HeadParallel splits a RelationAttention, got {type(module).__name__}{hint}")
    if module.edge_states is not None:
        raise NotImplementedError("edge_update must be left out: states of edges are not split by heads")
    if mesh.ndim != 1:
        raise ValueError(f"mesh must have one axis, such as mesh['tp'], got {mesh.ndim}")
    for name in ("num_heads", "num_kv_heads"):
        heads = getattr(module, name)
        if heads % mesh.size():
            raise ValueError(f"{name} must be a multiple of the {mesh.size()} processes of the mesh, got {heads}")
    if type(module.out_proj) is not nn.Linear:
        raise ValueError(f"out_proj must be a torch.nn.Linear to be split, got {type(module.out_proj).__name__}")
    if isinstance(module.out_proj.weight, DTensor):
        raise ValueError("layer must not be split already: parallelize_module comes first and once, then fully_shard")
    return module


def _tables(layer: RelationAttention) -> list[LabelTable]:
    """The tables of a layer."""
    return [] if layer.tables is None else [x for x in layer.tables.modules() if isinstance(x, LabelTable)]


def _placements(layer: RelationAttention) -> list[tuple[nn.Module, str, Placement]]:
    """Every parameter of the layer that becomes a DTensor: its module, its name there and what is split."""
    found: list[tuple[nn.Module, str, Placement]] = []
    by_heads = [f"{name}_proj_{kind}" for name in "qkv" for kind in ("weight", "bias")]
    found += [(layer, name, Shard(0)) for name in (*by_heads, "content_bias", "position_bias", "sink")]
    found += [(layer.out_proj, "weight", Shard(1)), (layer.out_proj, "bias", Replicate())]
    for table in _tables(layer):
        found.append((table, "rows", Replicate() if table.heads is None else Shard(0)))
    if layer.value_map is not None:
        found += [(layer.value_map, name, Shard(0)) for name in ("maps", "bases")]
        found.append((layer.value_map, "coefficients", Replicate()))
    if layer.gates is not None:
        found += [(layer.gates, name, Shard(0)) for name in ("key", "value")]
    if layer.edge_maps is not None:
        found += [(layer.edge_maps, name, Shard(0)) for name in ("key", "value")]
    how = compatibility(layer.score)
    if how.replaces_dot:
        per_head = weight_of(how).axis(how.weight, "H") is not None
        found.append((layer.score, "weight", Shard(0) if per_head else Replicate()))
    for part in how.function.modules() if isinstance(how.function, nn.Module) else ():
        found += [(part, name, Replicate()) for name, _ in part.named_parameters(recurse=False)]
    return [(owner, name, place) for owner, name, place in found if owner._parameters.get(name) is not None]
