"""The tensors that stand for a graph's labels in its data, and labels made of them for the nodes that remain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from relgraph.arguments import check
from relgraph.arguments.brief import shown
from relgraph.graphs import Graph
from relgraph.labelers.all_pairs import label_pairs
from relgraph.labels import NOT_ATTENDING, UNLABELED, DenseLabels, DistanceLabels, EdgeLabels, Labels, SumLabels
from relgraph.labels.ragged import block_address, block_starts
from relgraph.pyg.data import borders, borders_of, check_sorted, edge_index_of, types_of


def to_store(labels: Labels) -> dict[str, Any]:
    """The tensors of one graph's labels, without parts that the labeler makes the same for all graphs."""
    if isinstance(labels, SumLabels):
        return {str(number): to_store(part) for number, part in enumerate(labels.parts)}
    if isinstance(labels, DistanceLabels):
        return {}
    if isinstance(labels, DenseLabels):
        return {"label": labels.ids.flatten()}
    assert isinstance(labels, EdgeLabels)
    rest = {"rest": to_store(labels.default)} if isinstance(labels.default, Labels) else {}
    # no "index" in the name: PyG would add node counts to it, which may have changed since
    pairs = labels.edge_index.T.contiguous()
    return {"pair": pairs, "label": labels.ids, "count": pairs.shape[0], **rest}


def restore(stored: Stored, template: Labels, remaining: RemainingNodes) -> Labels:
    """Labels from their tensors, with everything else as in ``template``."""
    nodes = remaining.nodes
    if isinstance(template, SumLabels):
        parts = enumerate(template.parts)
        return SumLabels(*(restore(stored.part(str(number)), part, remaining) for number, part in parts))
    if isinstance(template, EdgeLabels):
        default, (edge_index, ids) = template.default, remaining.edges(stored, template.num_labels)
        if isinstance(default, Labels):
            default = restore(stored.part("rest"), default, remaining)
        return EdgeLabels(
            edge_index, ids, template.num_labels, q_len=nodes.num_nodes, default=default,
            duplicates=template.duplicates, ptr=nodes.ptr,
        )  # fmt: skip
    if isinstance(template, DistanceLabels):
        lookup, first = template.lookup, template.left
        if remaining.place is None:
            num_labels = template.num_labels
            return DistanceLabels(nodes.num_nodes, lookup=lookup, left=first, num_labels=num_labels, ptr=nodes.ptr)
        query, key = nodes.pairs()
        distance = (remaining.numbers[key] - remaining.numbers[query]).clamp(-first, len(lookup) - 1 - first)
        codes = torch.tensor(lookup, device=nodes.device)[distance + first]
    else:
        assert isinstance(template, DenseLabels)
        codes = remaining.pairs(stored, template.num_labels)
    return label_pairs(nodes, codes.clamp(min=UNLABELED), template.num_labels, codes > NOT_ATTENDING)


def constants_of(labels: Labels) -> tuple[Any, ...] | None:
    """All that describes labels apart from their tensors and lengths; None for kinds that cannot be stored."""
    if isinstance(labels, SumLabels):
        parts = tuple(constants_of(part) for part in labels.parts)
        return None if None in parts else parts
    if isinstance(labels, EdgeLabels):
        default = constants_of(labels.default) if isinstance(labels.default, Labels) else (labels.default,)
        return None if default is None else ("edges", labels.num_labels, default, labels.duplicates)
    if isinstance(labels, DistanceLabels) and labels.q_offset is None:
        return "distances", labels.num_labels, labels.lookup, labels.left
    return ("dense", labels.num_labels) if isinstance(labels, DenseLabels) else None


def numbers_of(edge_index: Tensor, edge_type: Tensor | None, nodes: Graph) -> Tensor:
    """``[G]``, a number for the edges of each graph with their types, in any order."""
    graph = nodes.graph_of()[edge_index[1].clamp(0, nodes.num_nodes - 1)]
    numbers = torch.zeros_like(graph)
    for x in (*(edge_index - nodes.borders()[graph]), 0 if edge_type is None else edge_type):
        numbers = (numbers + x + 1) * -0x2E4AB5CD2E6D12FD  # of 64 bits, so that different edges give different ones
        numbers = numbers ^ (numbers >> 29)
    return numbers.new_zeros(nodes.num_graphs).index_add(0, graph, numbers)


@dataclass(frozen=True)
class Stored:
    """A stored dict, and its name in messages; entries may have been lost or changed since."""

    name: str
    entries: Mapping[str, Any]

    def _entry(self, key: str) -> Any:
        if key not in self.entries:
            raise ValueError(f"{self.name} must hold {key!r}, got {sorted(map(str, self.entries))}: label again")
        return self.entries[key]

    def part(self, key: str) -> Stored:
        """The dict stored under ``key``."""
        entries = self._entry(key)
        if not isinstance(entries, Mapping):
            raise TypeError(f"{self.name}[{key!r}] must be a dict, got {type(entries).__name__}")
        return Stored(f"{self.name}[{key!r}]", entries)

    def tensor(self, key: str, dim: int, device: torch.device) -> Tensor:
        """An integer tensor on the device of the nodes' numbers."""
        name = f"{self.name}[{key!r}]"
        found = check.integer_tensor(name, self._entry(key), dim=dim)
        if found.device != device:
            raise ValueError(f"{name} must be on the device of the nodes, {device}, got {found.device}")
        return found

    def counts(self, key: str, device: torch.device) -> Tensor:
        """``[G]``, one number per graph: stored as an int for one, a tensor or a list for several."""
        name, given = f"{self.name}[{key!r}]", self._entry(key)
        if isinstance(given, Tensor):
            return self.tensor(key, given.dim(), device).to(torch.int64).view(-1)
        listed = check.items(name, given, "counts") if isinstance(given, (list, tuple)) else (given,)
        return torch.tensor([check.integer(name, count, minimum=0) for count in listed], device=device)

    def texts(self, key: str, what: str) -> set[str]:
        """The texts of all graphs, such as the expressions of the labelers that made the labels."""
        texts = self._entry(key)
        if not isinstance(texts, (str, list, tuple)) or not all(isinstance(one, str) for one in texts):
            raise TypeError(f"{self.name}[{key!r}] must be {what}, got {shown(texts)}")
        return {texts} if isinstance(texts, str) else set(texts)

    def check_edges(self, data: Data, nodes: Graph) -> None:
        """Raise ValueError if the edges or their types are other ones than were labeled."""
        index, name = (
            edge_index_of("data", data._store),
            max(self.texts("types", "the name of an attribute"), default=""),
        )
        if not name or name in data:
            types = types_of(data, name, "edge_type") if name else None
            fits = types is None or len(types) == index.shape[1]
            held = self.tensor("edges", 1, nodes.device)
            if not fits or not torch.equal(held, numbers_of(index, types, nodes)):
                raise ValueError(
                    f"{self.name} must hold labels of these edges, got edges that changed since: AddRelationLabels "
                    "must come after the transforms that change them; label again"
                )


@dataclass(frozen=True)
class RemainingNodes:
    """The labeled nodes that were not removed."""

    nodes: Graph  # of these nodes, without edges
    numbers: Tensor  # [N], the number that each had in its original graph
    sizes: Tensor  # [G], the number of nodes of each original graph
    # the sorted numbers of the nodes in the original batch, and the position of each now; None if no node moved
    place: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, nodes: Graph, numbers: Tensor, sizes: Tensor) -> RemainingNodes:
        """Raise ValueError unless every node was labeled and occurs once."""
        if not check.can_look_at_data(numbers, sizes):
            return cls(nodes, numbers, sizes, None)
        if sizes.shape[0] != nodes.num_graphs:
            raise ValueError(f"data.rel['nodes'] must be one per graph, {nodes.num_graphs}, got {sizes.shape[0]}")
        graph = nodes.graph_of()
        known = bool(((numbers >= 0) & (numbers < sizes[graph])).all())
        before = (sizes.cumsum(0) - sizes)[graph] + numbers
        if not known or before.unique().shape[0] != before.shape[0]:
            raise ValueError(
                "data.rel must hold labels of all these nodes, got nodes that were not labeled, or occur twice: "
                "label again"
            )
        here = torch.arange(nodes.num_nodes, device=nodes.device)
        if nodes.num_nodes == int(sizes.sum()) and torch.equal(before, here):
            return cls(nodes, numbers, sizes, None)
        numbered, where = before.sort()
        return cls(nodes, numbers, sizes, (numbered, where))

    def edges(self, stored: Stored, num_labels: int) -> tuple[Tensor, Tensor]:
        """Pairs ``[2, P]`` of remaining nodes, and their labels."""
        device = self.numbers.device
        pairs, ids = stored.tensor("pair", 2, device), stored.tensor("label", 1, device)
        count = stored.counts("count", device)
        if pairs.shape[1] != 2 or pairs.shape[0] != ids.shape[0]:
            raise ValueError(
                f"{stored.name} must hold 'pair' [P, 2] and 'label' [P], got {list(pairs.shape)} and {list(ids.shape)}"
            )
        if count.shape != self.sizes.shape:
            raise ValueError(f"{stored.name}['count'] must be one per graph, {len(self.sizes)}, got {len(count)}")
        check.id_range(f"{stored.name}['label']", ids, num_labels)
        looks = check.can_look_at_data(pairs, count)
        if looks and int(count.sum()) != pairs.shape[0]:
            raise ValueError(f"{stored.name}['count'] must add up to {pairs.shape[0]} pairs, got {int(count.sum())}")
        graph = torch.repeat_interleave(count, output_size=pairs.shape[0])
        if looks and not bool(((pairs >= 0) & (pairs < self.sizes[graph][:, None])).all()):
            raise ValueError(f"{stored.name}['pair'] must be nodes of their own graph, got others")
        ends = pairs.T + (self.sizes.cumsum(0) - self.sizes)[graph]  # [2, P]
        if self.place is None:
            return ends, ids
        numbered, where = self.place
        if not numbered.numel():
            return ends[:, :0], ids[:0]
        at = torch.searchsorted(numbered, ends.contiguous()).clamp(max=numbered.shape[0] - 1)
        both = (numbered[at] == ends).all(0)
        return where[at][:, both], ids[both]

    def pairs(self, stored: Stored, num_labels: int) -> Tensor:
        """The entries for all pairs of remaining nodes, taken from ``[sum of n²]``."""
        codes = stored.tensor("label", 1, self.numbers.device)
        if check.can_look_at_data(self.sizes) and codes.shape[0] != (wanted := int((self.sizes**2).sum())):
            raise ValueError(f"{stored.name}['label'] must have shape [{wanted}], got {list(codes.shape)}")
        check.id_range(f"{stored.name}['label']", codes, num_labels, minimum=NOT_ATTENDING)
        codes = codes.to(torch.int16) if codes.dtype == torch.uint8 else codes  # so that it compares with -1
        if self.place is None:
            return codes
        query, key = self.nodes.pairs()
        graph, ends = self.nodes.graph_of()[query], self.sizes.cumsum(0)
        ptr = torch.cat([ends.new_zeros(1), ends])
        query, key = (ptr[graph] + self.numbers[nodes] for nodes in (query, key))
        return codes[block_address(ptr, ptr, block_starts(ptr, ptr), query, key, graph)]


def remaining_borders(data: Data, num_nodes: int, sizes: Tensor) -> Tensor | None:
    """The borders of the graphs, from ``batch`` rather than ``ptr``, which ``Batch.subgraph`` does not update."""
    batch = data.get("batch", None)
    if batch is None or not check.can_look_at_data(batch):
        return borders(data, num_nodes)
    check_sorted("data.batch", batch)
    return borders_of(batch, sizes.shape[0])
