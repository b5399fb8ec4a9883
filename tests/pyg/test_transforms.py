"""Labels stored beside a graph's data: they collate, move, and are never read for other nodes than were labeled."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.loader import DataLoader, RandomNodeLoader
from torch_geometric.loader.utils import filter_data
from torch_geometric.transforms import AddSelfLoops, Compose, RemoveIsolatedNodes, ToUndirected, VirtualNode

import relgraph as rg
from relgraph.labelers import Labeler
from relgraph.labels import EdgeLabels, SumLabels
from relgraph.pyg import AddRelationLabels, from_data, relation_labels

EDGES = rg.EdgeType(["a", "b"], inverse=True, duplicates="first")


def parity(i, j):
    return torch.where(i == j, -1, (i + 2 * j) % 3)


LABELERS = [
    EDGES,
    rg.EdgeType(2, attend="all", default="none"),
    rg.EdgeType(2, attend="all") | rg.ClippedDistance(2),
    rg.ClippedDistance(2),
    rg.FromFunction(parity, 3),
    rg.FromFunction(parity, 3) & rg.EdgeType(2),
    rg.EdgeType(2, attend="all", duplicates="sum") * rg.ClippedDistance(1),
    rg.ShortestPath(3),
    rg.EdgeType(2, attend="all", default="none") + rg.FromFunction(parity, 3) + rg.ClippedDistance(1),
]


def graph(count, *pairs):
    table = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    kinds = torch.arange(len(pairs)) % 2
    return Data(x=torch.rand(count, 2), edge_index=table.T.contiguous(), edge_type=kinds, y=torch.zeros(1))


# Of unequal sizes: more edges than nodes, as many, a single node, none, no edges.
GRAPHS = [
    graph(3, (0, 1), (1, 2), (0, 2), (2, 1)),
    graph(4, (0, 1), (1, 2), (2, 3), (3, 0)),
    graph(1),
    graph(2, (0, 1)),
    graph(1, (0, 0)),
    graph(0),
    graph(5),
]


def dense(labels):
    """Every part written out; parallel edges, which come in another order in a batch, sorted."""
    parts = labels.parts if isinstance(labels, SumLabels) else (labels,)
    return [(type(part), part.num_labels, part.packed, *written(part)) for part in parts]


def written(labels):
    if not getattr(labels, "parallel", False):
        return labels.to_dense()
    listed = torch.cat([labels.edge_index, labels.ids[None]])
    return (torch.tensor(sorted(listed.T.tolist())),)


def assert_same(got, wanted):
    for mine, theirs in zip(dense(got), dense(wanted), strict=True):
        assert mine[:3] == theirs[:3]
        torch.testing.assert_close(mine[3:], theirs[3:])


@pytest.fixture(params=LABELERS, ids=repr)
def transform(request):
    return AddRelationLabels(request.param)


def test_a_graph_reads_what_the_labeler_gives(transform):
    for data in GRAPHS:
        labeled = transform(data)
        assert "rel" not in data
        assert_same(relation_labels(labeled, transform), transform.labeler(from_data(data)))


def test_a_batch_reads_what_the_labeler_gives(transform):
    labeled = [transform(data) for data in GRAPHS]
    for some in (labeled, labeled[::-1], labeled[2:3], labeled[5:]):
        batch = Batch.from_data_list(some)
        assert_same(relation_labels(batch, transform.labeler), transform.labeler(from_data(batch)))


def test_a_batch_gives_its_graphs_back(transform):
    labeled = [transform(data) for data in GRAPHS]
    batch = Batch.from_data_list(labeled)
    for alone in (batch.to_data_list(), [batch[at] for at in range(len(batch))], batch[torch.arange(7)]):
        for data, back in zip(labeled, alone, strict=True):
            assert_same(relation_labels(back, transform), relation_labels(data, transform))
            assert set(back.keys()) == set(data.keys())
    again = Batch.from_data_list(batch.to_data_list()[::-1])
    assert_same(relation_labels(again, transform), relation_labels(Batch.from_data_list(labeled[::-1]), transform))


def test_loader_with_a_worker():
    transform = AddRelationLabels(LABELERS[-1])
    for batch in DataLoader([transform(data) for data in GRAPHS], batch_size=4, num_workers=1, follow_batch=["rel"]):
        assert_same(relation_labels(batch, transform), transform.labeler(from_data(batch)))


def test_survives_pickle_and_copies(transform):
    batch = Batch.from_data_list([transform(data) for data in GRAPHS])
    wanted = relation_labels(batch, transform)
    again = pickle.loads(pickle.dumps(transform))
    assert repr(again) == repr(transform) and again.labeler == transform.labeler
    for copied in (pickle.loads(pickle.dumps(batch)), batch.clone(), batch.to("cpu"), batch.contiguous()):
        assert relation_labels(copied, again) == wanted
    single = transform(GRAPHS[0])
    file = io.BytesIO()
    torch.save(single.to_dict(), file)
    file.seek(0)
    loaded = Data.from_dict(torch.load(file, weights_only=True))
    assert_same(relation_labels(loaded, transform), relation_labels(single, transform))


def test_moves_with_the_data(transform):
    batch = Batch.from_data_list([transform(data) for data in GRAPHS]).to("meta")
    labels = relation_labels(batch, transform)
    assert labels.device in (torch.device("meta"), None)
    assert (labels.q_len, labels.num_labels) == (16, transform.labeler.num_labels)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_moves_to_a_gpu(transform):
    batch = Batch.from_data_list([transform(data) for data in GRAPHS])
    labels = relation_labels(batch.pin_memory().to("cuda", non_blocking=True), transform)
    assert str(labels.device) in ("cuda:0", "None")
    assert_same(labels.to("cpu"), relation_labels(batch, transform))


def test_is_stored_small_and_flat():
    labeler = rg.FromFunction(parity, 3)
    batch = Batch.from_data_list([Compose([AddRelationLabels(labeler)])(data) for data in GRAPHS[:2]])
    assert batch.rel["label"].dtype == torch.int8 and batch.rel["label"].shape == (9 + 16,)
    labels = relation_labels(batch, labeler)
    assert torch.equal(labels.ids, batch.rel["label"]) and labels == labeler(from_data(batch))
    data = Data(edge_index=torch.tensor([[0], [1]]), edge_attr=torch.tensor([[0.0, 1.0]]), num_nodes=2)
    transform = AddRelationLabels(rg.EdgeType(2), edge_type="edge_attr", node_type=None)
    assert repr(transform) == "AddRelationLabels(EdgeType(2), edge_type='edge_attr', node_type=None)"
    assert relation_labels(transform(data), transform).ids.tolist() == [1]


class Stored(InMemoryDataset):
    """The graphs above, labeled before they are written to disk."""

    @property
    def processed_file_names(self):
        return "data.pt"

    def process(self):
        self.save([self.pre_transform(data) for data in GRAPHS], self.processed_paths[0])

    def __init__(self, root, pre_transform):
        super().__init__(root, pre_transform=pre_transform, log=False)
        self.load(self.processed_paths[0])


def test_in_memory_dataset(tmp_path, transform):
    for _ in range(2):  # written, then read
        dataset = Stored(str(tmp_path), transform)
        for data, back in zip(GRAPHS, dataset, strict=True):
            assert_same(relation_labels(back, transform), transform.labeler(from_data(data)))
    (batch,) = DataLoader(dataset[[4, 0, 1]], batch_size=3)
    assert_same(relation_labels(batch, transform), transform.labeler(from_data(batch)))


STALE = "data.rel must hold labels of all these nodes, got nodes that were not labeled, or occur twice: label again"


def listed(labels, keep):
    """What each pair of the nodes in ``keep`` carries: a code, or for edges how often each label comes, and the rest."""
    if isinstance(labels, SumLabels):
        return [listed(part, keep) for part in labels.parts]
    if isinstance(labels, EdgeLabels):
        count = torch.zeros(labels.q_len, labels.k_len, labels.num_labels + 1, dtype=torch.int64)
        source, target = labels.edge_index
        codes = count.index_put((target, source, labels.ids.long()), torch.tensor(1), accumulate=True)
        rest = [] if labels.default is None else [listed(rest_of(labels), keep)]
        return [codes[keep][:, keep], *rest]
    ids, attend = labels.to_dense()
    return ids[0].masked_fill(~attend[0], -2)[keep][:, keep]


def rest_of(labels):
    """The labels of all pairs that no edge joins, as labels."""
    if isinstance(labels.default, rg.Labels):
        return labels.default
    return rg.FromFunction(lambda i, j: torch.full_like(i + j, labels.default), labels.num_labels)(
        rg.Graph(torch.zeros(2, 0).long(), labels.q_len, ptr=labels.k_ptr)
    )


def assert_follows(labels, whole, keep):
    """``labels`` are those of ``whole`` for the nodes in ``keep``, in that order."""
    assert labels.num_labels == whole.num_labels
    everywhere = torch.arange(len(keep))
    mine, wanted = listed(labels, everywhere), listed(whole, torch.tensor(keep, dtype=torch.int64))
    for a, b in zip(*((x if isinstance(x, list) else [x]) for x in (mine, wanted)), strict=True):
        torch.testing.assert_close(a, b)


def test_labels_follow_nodes_taken_away_or_moved(transform):
    # Three nodes and, by the labels of edges, three pairs: sampling takes neither for the other.
    for data in (GRAPHS[0], GRAPHS[1], graph(3, (0, 1), (1, 2), (2, 0))):
        for nodes in ([0, 1], [], [1, 2, 0]):
            sampled = transform(data).subgraph(torch.tensor(nodes, dtype=torch.int64))
            assert_follows(relation_labels(sampled, transform), transform.labeler(from_data(data)), nodes)
            assert_same(relation_labels(transform(sampled), transform), transform.labeler(from_data(sampled)))
    for sampled in RandomNodeLoader(transform(GRAPHS[1]), num_parts=2):
        whole = transform.labeler(from_data(GRAPHS[1]))
        assert_follows(relation_labels(sampled, transform), whole, sampled.rel_node.tolist())


def test_labels_follow_nodes_taken_from_a_batch(transform):
    whole = Batch.from_data_list([transform(data) for data in GRAPHS[:3]])
    for keep in ([0, 1, 2, 3, 4, 5, 7], [1, 6]):
        batch = whole.subgraph(torch.tensor(keep))
        assert_follows(relation_labels(batch, transform), relation_labels(whole, transform), keep)


def test_other_transforms(transform):
    data = Data(edge_index=torch.tensor([[0, 2], [2, 2]]), edge_type=torch.tensor([0, 1]), num_nodes=3)
    with pytest.raises(ValueError, match=STALE):
        relation_labels(VirtualNode()(transform(data)), transform)
    fewer = relation_labels(RemoveIsolatedNodes()(transform(data)), transform)
    assert_follows(fewer, transform.labeler(from_data(data)), [0, 2])
    no_edges = transform(data)
    del no_edges.edge_index  # as ToSparseTensor does
    for changed in (no_edges, transform(transform(data))):
        assert_same(relation_labels(changed, transform), transform.labeler(from_data(data)))


CHANGES = {
    "self-loops": AddSelfLoops("edge_type", 1),
    "both ways": ToUndirected(),
    "an edge less": lambda data: data.update({"edge_index": data.edge_index[:, 1:], "edge_type": data.edge_type[1:]}),
    "reversed": lambda data: data.update({"edge_index": data.edge_index.flip(0)}),
    "other types": lambda data: data.update({"edge_type": 1 - data.edge_type}),
    "types that change places": lambda data: data.update({"edge_type": data.edge_type.flip(0)}),
    "in place": lambda data: data.edge_index.numpy().__setitem__((1, 0), 2) or data,
    "edges without types": AddSelfLoops(),
    "none": lambda data: data.update({"edge_index": data.edge_index[:, :0], "edge_type": data.edge_type[:0]}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_edges_that_change_afterwards_are_noticed(change):
    transform, kinds = AddRelationLabels(rg.EdgeType(2)), torch.tensor([0, 1])
    ends = torch.tensor([[0, 0], [1, 2]])
    labeled, other = (transform(Data(edge_index=ends[:, at:], edge_type=kinds[at:], num_nodes=4)) for at in (0, 1))
    loaded = Data.from_dict(copy.deepcopy(labeled.to_dict()))
    changed = CHANGES[change](loaded)
    for read in (changed, Batch.from_data_list([other, changed]), Batch.from_data_list([changed, other])):
        for by in (transform, transform.labeler):
            with pytest.raises(ValueError, match="labels of these edges, got edges that changed since: AddRelationL"):
                relation_labels(read, by)
    if len(changed.edge_type) == changed.num_edges:
        assert_same(relation_labels(transform(changed), transform), transform.labeler(from_data(changed)))


def test_edges_in_another_order_or_without_types_are_the_same():
    transform, data = AddRelationLabels(rg.ShortestPath(2)), GRAPHS[1]
    wanted, turned, bare = relation_labels(transform(data), transform), transform(data), transform(data)
    turned.edge_index, turned.edge_type = turned.edge_index.flip(1), turned.edge_type.flip(0)
    del bare.edge_type
    for read in (turned, bare, Batch.from_data_list([turned])[0]):
        assert_same(relation_labels(read, transform), wanted)


def test_a_sampler_may_leave_out_edges():
    transform = AddRelationLabels(rg.EdgeType(2))
    labeled = transform(GRAPHS[1])
    sampled = labeled.clone().update({"edge_index": labeled.edge_index[:, :2], "edge_type": labeled.edge_type[:2]})
    sampled.n_id = torch.arange(4)  # as NeighborLoader does
    assert_same(relation_labels(sampled, transform), relation_labels(labeled, transform))


def test_nodes_that_come_twice_are_noticed(transform):
    data = transform(GRAPHS[1])
    data.rel_node = data.rel_node[[0, 1, 1, 3]]
    with pytest.raises(ValueError, match=STALE):
        relation_labels(data, transform)


def test_sampled_by_what_neighbor_loader_samples_with(transform):
    """NeighborLoader's own filter, so that the test needs none of its compiled samplers."""
    data = transform(GRAPHS[1])
    node, row, col, edge = (torch.tensor(of) for of in ([1, 0, 3], [1, 2], [0, 1], [0, 3]))
    sampled = filter_data(data, node, row, col, edge)
    assert sampled.num_nodes == 3
    assert_follows(relation_labels(sampled, transform), transform.labeler(from_data(GRAPHS[1])), [1, 0, 3])
    assert_same(relation_labels(transform(sampled), transform), transform.labeler(from_data(sampled)))


def test_refuses_labels_that_are_not_there_or_of_another_labeler():
    transform = AddRelationLabels(EDGES)
    labeled = transform(GRAPHS[0])
    mixed = Batch.from_data_list([labeled, AddRelationLabels(rg.EdgeType(2))(GRAPHS[0])])
    for data, by, match in (
        (GRAPHS[0], transform, "data must hold labels under 'rel', put there by AddRelationLabels, got"),
        (labeled, rg.ClippedDistance(1), r"labels of the labeler that reads them, Clip.*\(1\), got those of Edge"),
        (mixed, transform, r"labels of the labeler that reads them, Edge.*, got .* EdgeType\(.*\) and EdgeType\(2\)"),
    ):
        with pytest.raises(ValueError, match=match):
            relation_labels(data, by)


@pytest.mark.parametrize(
    ("lost", "error", "match"),
    [
        ({"pair": torch.tensor([[0, 9]])}, ValueError, r"rel\['pair'\] must be nodes of their own graph"),
        ({"label": torch.tensor([7])}, ValueError, r"rel\['label'\] must lie in \[-1, 2\), got values from 7 to 7"),
        ({"label": torch.tensor([0, 1])}, ValueError, r"rel must hold 'pair' \[P, 2\] and 'label' \[P\]"),
        ({"count": 2}, ValueError, r"rel\['count'\] must add up to 1 pairs, got 2"),
        ({"count": [1, 0]}, ValueError, r"rel\['count'\] must be one per graph, 1, got 2"),
        ({"nodes": [1, 1]}, ValueError, r"rel\['nodes'\] must be one per graph, 1, got 2"),
        ({"by": 3}, TypeError, r"rel\['by'\] must be the expression of a labeler, got 3"),
        (
            "count",
            ValueError,
            r"rel must hold 'count', got \['by', 'edges', 'label', 'nodes', 'pair', 'types'\]: label again",
        ),
    ],
)
def test_damaged_labels(lost, error, match):
    transform = AddRelationLabels(rg.EdgeType(2))
    data = transform(Data(edge_index=torch.tensor([[0], [1]]), edge_type=torch.tensor([1]), num_nodes=2))
    data.rel = {k: v for k, v in data.rel.items() if k != lost} if isinstance(lost, str) else {**data.rel, **lost}
    with pytest.raises(error, match=f"data.{match}"):
        relation_labels(data, transform)


@dataclass(frozen=True)
class Odd(Labeler):
    """Returns what it is given."""

    kind: str
    num_labels = 1
    names = ("0",)

    def __call__(self, graph):
        if self.kind == "changing" and graph.num_nodes > 1:
            return rg.ClippedDistance(0)(graph)
        if self.kind == "wide":
            return rg.ClippedDistance(0)(1, 2)
        if self.kind == "block":
            return rg.BlockLabels(torch.zeros(graph.num_nodes**2).long(), 1, torch.tensor([0, graph.num_nodes]))
        return EDGES(graph) if self.kind == "changing" else "labels"


def test_refuses_what_cannot_be_stored():
    data, taken = GRAPHS[0], GRAPHS[0].clone()
    for kind in ("changing", "block"):
        with pytest.raises(NotImplementedError, match="stored labels must be dense, of edges, of distances or sums"):
            AddRelationLabels(Odd(kind))(data)
    with pytest.raises(ValueError, match="labeler must label the 3 nodes against themselves, got DistanceLabels"):
        AddRelationLabels(Odd("wide"))(data)
    with pytest.raises(TypeError, match="labeler must return Labels, got str"):
        AddRelationLabels(Odd("none"))(data)
    with pytest.raises(ValueError, match="data must be one graph, got a batch"):
        AddRelationLabels(EDGES)(Batch.from_data_list([data, data]))
    taken.rel_node = torch.zeros(3)
    with pytest.raises(ValueError, match="data.rel_node must be free for labels, got other data"):
        AddRelationLabels(EDGES)(taken)
    taken.rel = {"index": 3}
    with pytest.raises(ValueError, match="data.rel must be free for labels"):
        AddRelationLabels(EDGES)(taken)
