"""Labels of their own for both sides and the memory, with graphs as source; learned positions of a Transformer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import relgraph as rg
from relgraph.nn import LearnedPositions
from relgraph.nn.memory import attend_by_borders
from tests.layers import transformer

from .helpers import F64, close, fill_tables

SIZES = (3, 0, 5, 1)
DISTANCES, PATHS = rg.ClippedDistance(2), rg.ShortestPath(2)


def chain(size):
    steps = torch.arange(max(size - 1, 0))
    return rg.Graph(torch.stack([steps, steps + 1]), size)


GRAPHS = [chain(size) for size in SIZES]
BATCH = rg.Graph.batch(GRAPHS)
REAL = [index for index, size in enumerate(SIZES) if size]


def make(*, seed=0, **options):
    torch.manual_seed(seed)
    given = {"labeler": PATHS, "target_labeler": DISTANCES, "dtype": F64, **options}
    model = fill_tables(transformer(12, 3, 2, 2, 20, **copy.deepcopy(given)))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LearnedPositions):
                module.weight.normal_()
    return model.eval()


def _learned(max_len):
    """Make learned positions of source and target."""
    return tuple(LearnedPositions(12, max_len, dtype=F64) for _ in range(2))


def inputs(length=4):
    torch.manual_seed(1)
    return torch.randn(sum(SIZES), 12, dtype=F64), torch.randn(len(SIZES), length, 12, dtype=F64)


def rows_of(graph):
    return slice(int(BATCH.ptr[graph]), int(BATCH.ptr[graph + 1]))


def one_by_one(model, nodes, tgt, **options):
    """Compute each graph that has nodes with its target, without a batch axis."""
    return torch.stack([model(nodes[rows_of(g)], tgt[g], src_labels=GRAPHS[g], **options) for g in REAL])


def step_by_step(model, tgt, memory, chunks, *, labels=None, towards=None, again=False, **options):
    cache, pieces, start = model.new_cache(), [], 0
    for size in chunks:
        stop = start + size
        more = {} if labels is None else {"tgt_labels": labels(size, stop, q_offset=start)}
        if towards is not None:
            more["memory_labels"] = towards(start, stop)
        given = {"memory": memory, **options} if again or start == 0 else {"memory": None}
        pieces.append(model.decode(tgt[:, start:stop], cache=cache, **given, **more))
        start = stop
    return torch.cat(pieces, 1)


OPTIONS = [
    {},
    {"target_labeler": rg.Window()},
    {"positions": "sinusoidal"},
    {"positions": (None, "sinusoidal")},
    {"positions": LearnedPositions(12, 5, dtype=F64)},
    {"positions": (LearnedPositions(12, 5, dtype=F64), None), "per_head": True},
    {"num_kv_heads": 1, "tables": ("key", "bias")},
    {"labeler": rg.EdgeType(1, inverse=True, self_loop=True)},
    {"labeler": DISTANCES + PATHS},
    {"labeler": rg.Window(1), "per_head": True},
    {"memory_labeler": DISTANCES},
]


class TestGraphsIn:
    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_packed_is_graph_by_graph(self, options):
        model, (nodes, tgt) = make(**options), inputs()
        graphs = BATCH
        if isinstance(model.encoder.layers[0].labeler, rg.EdgeType):
            graphs = BATCH.with_edges(BATCH.edge_index, torch.zeros(BATCH.num_edges, dtype=torch.long))
            single = [g.with_edges(g.edge_index, torch.zeros(g.num_edges, dtype=torch.long)) for g in GRAPHS]
            alone = torch.stack([model(nodes[rows_of(g)], tgt[g], src_labels=single[g]) for g in REAL])
        else:
            alone = one_by_one(model, nodes, tgt)
        close(model(nodes, tgt, src_labels=graphs)[REAL], alone)
        close(model(nodes, tgt, src_labels=model.encoder.layers[0].labeler(graphs))[REAL], alone)

    def test_a_mask_of_the_memory_and_hidden_nodes(self):
        model, (nodes, tgt) = make(), inputs()
        blocked = torch.rand(4, 5) < 0.3
        got = model(nodes, tgt, src_labels=BATCH, memory_mask=blocked)
        for g, wanted in zip(REAL, [model(nodes[rows_of(g)], tgt[g], src_labels=GRAPHS[g],
                                          memory_mask=blocked[:, : SIZES[g]]) for g in REAL], strict=True):  # fmt: skip
            close(got[g], wanted)
        hidden = torch.tensor([False, True, False, False, False, True, True, False, False])
        added = torch.zeros(9, dtype=F64).masked_fill(hidden, float("-inf"))
        hide = torch.stack([model(nodes[rows_of(g)], tgt[g], src_labels=GRAPHS[g],
                                  memory_key_padding_mask=hidden[rows_of(g)]) for g in REAL])  # fmt: skip
        for mask in (hidden, added):
            close(model(nodes, tgt, src_labels=BATCH, memory_key_padding_mask=mask)[REAL], hide)
            nothing = torch.zeros(4, 5, dtype=torch.bool)
            options = {"memory_key_padding_mask": mask, "memory_mask": nothing}
            close(model(nodes, tgt, src_labels=BATCH, **options)[REAL], hide)

    def test_gradients(self):
        model, (nodes, tgt) = make(memory_labeler=DISTANCES, positions=_learned(5)), inputs(3)
        weights = torch.randn(len(REAL), 3, 12, dtype=F64)
        found = []
        for run in (lambda *x: model(*x, src_labels=BATCH)[REAL], lambda *x: one_by_one(model, *x)):
            x, y = nodes.clone().requires_grad_(), tgt.clone().requires_grad_()
            model.zero_grad()
            (run(x, y) * weights).sum().backward()
            found.append([x.grad, y.grad, *(p.grad for p in model.parameters())])
        for got, wanted in zip(*found, strict=True):
            close(got, wanted)
        assert all(p.grad.abs().sum() > 0 for p in model.parameters())

    def test_no_graphs_and_no_rows(self):
        model = make()
        empty = rg.Graph(torch.zeros(2, 0, dtype=torch.long), 0, ptr=torch.tensor([0]))
        z = model(torch.zeros(0, 12, dtype=F64), torch.zeros(0, 4, 12, dtype=F64), src_labels=empty)
        assert z.shape == (0, 4, 12)
        nodes, _ = inputs()
        assert model(nodes, torch.zeros(4, 0, 12, dtype=F64), src_labels=BATCH).shape == (4, 0, 12)


class TestByHand:
    def test_cross_labels_of_ones_own(self):
        model, (nodes, tgt) = make(memory_labeler=rg.ClippedDistance(1)), inputs()
        ids = [torch.randint(-1, 3, (4, size)) for size in SIZES]
        blocks = rg.BlockLabels.from_blocks(ids, 3)
        padded = torch.stack([nn.functional.pad(x, (0, 5 - x.shape[1])) for x in ids])
        alone = torch.stack(
            [
                model(nodes[rows_of(g)], tgt[g], src_labels=GRAPHS[g], memory_labels=rg.DenseLabels(ids[g], 3))
                for g in REAL
            ]
        )
        for labels in (blocks, rg.DenseLabels(padded, 3)):
            close(model(nodes, tgt, src_labels=BATCH, memory_labels=labels)[REAL], alone)

        def towards(start, stop):
            return rg.DenseLabels(padded[:, start:stop], 3)

        memory = model.encode(nodes, src_labels=BATCH)
        close(step_by_step(model, tgt, memory, (1, 2, 1), towards=towards, memory_ptr=BATCH.ptr)[REAL], alone)


class TestDecoding:
    @pytest.mark.parametrize(("chunks", "again"), [((1, 1, 1, 1), False), ((3, 1), True)])
    @pytest.mark.parametrize("options", OPTIONS[:6] + OPTIONS[-1:], ids=str)
    def test_step_by_step(self, options, chunks, again):
        model, (nodes, tgt) = make(**options), inputs()
        wanted = model(nodes, tgt, src_labels=BATCH)
        with torch.no_grad():
            memory = model.encode(nodes, src_labels=BATCH)
            close(step_by_step(model, tgt, memory, chunks, again=again, memory_ptr=BATCH.ptr), wanted)
        close(model.decode(tgt, memory, memory_ptr=BATCH.ptr), wanted)

    def test_beams(self):
        model, (nodes, tgt) = make(), inputs()
        with torch.no_grad():
            memory, cache = model.encode(nodes, src_labels=BATCH), model.new_cache()
            model.decode(tgt[:, :2], memory, memory_ptr=BATCH.ptr, cache=cache)
            index = torch.tensor([2, 2, 0])
            cache.reorder(index)
            new = torch.randn(3, 1, 12, dtype=F64)
            got = model.decode(new, None, cache=cache)
        for row, g in enumerate(index.tolist()):
            whole = torch.cat([tgt[g, :2], new[row]])
            close(got[row, 0], model(nodes[rows_of(g)], whole, src_labels=GRAPHS[g])[-1])

    def test_without_a_cache_nothing_is_padded(self):
        _, tgt = inputs()
        memory = torch.randn(9, 12, dtype=F64)
        packed, padding, labels = attend_by_borders(tgt, memory, BATCH.ptr, None, None, pads=False)
        assert packed is memory and padding is None and repr(labels).startswith("DistanceLabels(q_len=16, k_len=9")
        rows, padding, labels = attend_by_borders(tgt, memory, BATCH.ptr, None, None, pads=True)
        assert rows.shape == (4, 5, 12) and padding.sum(1).tolist() == [2, 5, 0, 4] and labels is None


class TestLearned:
    def test_added_to_both_sides(self):
        model, bare = (
            make(positions=_learned(6), labeler=None, target_labeler=None),
            make(labeler=None, target_labeler=None),
        )
        bare.load_state_dict({k: v for k, v in model.state_dict().items() if "positions" not in k})
        src, tgt = torch.randn(2, 6, 12, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
        close(model(src, tgt), bare(src + model.positions.weight, tgt + model.tgt_positions.weight[:5]))
        assert [k for k in model.state_dict() if "positions" in k] == ["positions.weight", "tgt_positions.weight"]
        before = model.positions.weight.detach().clone()
        model.reset_parameters()
        assert not torch.equal(before, model.positions.weight)
        assert LearnedPositions(64, 400).weight.std().item() == pytest.approx(0.125, rel=0.05)

    def test_beyond_the_last(self):
        model = make(positions=_learned(4), labeler=None, target_labeler=None)
        src, tgt = torch.randn(2, 4, 12, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
        with pytest.raises(ValueError, match="^tgt must lie within the max_len = 4 learned positions, .* position 4"):
            model(src, tgt)
        with pytest.raises(ValueError, match="^src must lie within the max_len = 4"):
            model(tgt, src)
        nodes, tgt = inputs()
        with pytest.raises(ValueError, match="^src must lie within the max_len = 4"):
            make(positions=_learned(4))(nodes, tgt, src_labels=BATCH)
        model, cache = make(positions=(None, _learned(4)[1])), make().new_cache()
        memory = model.encode(nodes, src_labels=BATCH)
        model.decode(tgt[:, :3], memory, memory_ptr=BATCH.ptr, cache=cache)
        with pytest.raises(ValueError, match="^tgt must lie within the max_len = 4 .* position 4"):
            model.decode(tgt[:, :2], None, cache=cache)
        assert len(cache) == 3
        close(model.decode(tgt[:, 3:], None, cache=cache)[REAL], one_by_one(model, nodes, tgt)[:, 3:])


class TestModule:
    def test_defaults_have_the_keys_that_they_had(self):
        model = transformer(12, 3, 1, 1, 20, labeler=rg.ClippedDistance(2), positions="sinusoidal")
        assert not [k for k in model.state_dict() if "positions" in k or "multihead_attn.tables" in k]
        labeled = make(memory_labeler=DISTANCES)
        assert [k for k in labeled.state_dict() if "0.multihead_attn.tables" in k and k.endswith("rows")] == [
            "decoder.layers.0.multihead_attn.tables.key.rows", "decoder.layers.0.multihead_attn.tables.value.rows",
        ]  # fmt: skip
        assert labeled.decoder.layers[0].multihead_attn.tables.key.names == DISTANCES.names
        assert labeled.memory_labeler == DISTANCES
        assert repr(labeled).startswith("RelationTransformer(\n  12, nhead=3\n")


class TestRefused:
    def check(self, match, *, error=ValueError, options=None, **given):
        nodes, tgt = inputs()
        with pytest.raises(error, match=f"^{match}"):
            make(**(options or {}))(**{"src": nodes, "tgt": tgt, "src_labels": BATCH, **given})

    def test_one_graph_for_a_batch_of_one(self):
        nodes, tgt = inputs()
        one, model = rg.Graph(BATCH.edge_index, 9), make().eval()
        hidden = torch.arange(9) > 6
        for options in ({}, {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}):
            wanted = model(nodes, tgt[0], src_labels=one, **options)
            close(model(nodes, tgt[:1], src_labels=one, **options)[0], wanted)
        cache = model.new_cache()
        memory = model.encode(nodes, src_labels=one)
        steps = [model.decode(tgt[:1, i : i + 1], memory, cache=cache) for i in range(tgt.shape[1])]
        close(torch.cat(steps, 1)[0], model(nodes, tgt[0], src_labels=one))

    def test_sources_without_borders(self):
        match = r"src_labels must be packed, with the borders \(ptr\) of 4 graphs, as src has shape \[9, 12\] and tgt"
        whole = rg.Graph(BATCH.edge_index, 9)
        self.check(f"{match} .* got DenseLabels", src_labels=whole)
        self.check(f"{match} .* got None$", src_labels=None, options={"labeler": None, "target_labeler": None})
        nodes, tgt = inputs()
        with pytest.raises(ValueError, match=r"^memory_ptr must be the borders of 4 graphs, as memory has .* got None"):
            make().decode(tgt, nodes)

    def test_graphs_that_are_not_one_per_row(self):
        _, tgt = inputs()
        match = "src_labels must have the borders of one graph for each batch row of tgt, .* got 4 graphs and a tgt of"
        self.check(rf"{match} shape \[3, 4, 12\]", tgt=tgt[:3])
        self.check(rf"{match} shape \[4, 12\]", tgt=tgt[0])

    def test_labelers_of_the_wrong_side(self):
        match = r"labels must be given, as the labeler ShortestPath\(.*\) does not label lengths: it reads a Graph, so "
        self.check(rf"src_{match}pass src_labels=graph$", error=TypeError, src_labels=None)
        self.check(f"tgt_{match}", error=TypeError, options={"target_labeler": PATHS})
        self.check(f"memory_{match}", error=TypeError, options={"memory_labeler": PATHS})

    def test_labels_that_do_not_fit(self):
        self.check(r"src_labels must cover \[N_q, N_k\] = \[9, 9\], got \[8, 8\]", src_labels=rg.ShortestPath(2)(
            rg.Graph.batch([chain(n) for n in (3, 0, 4, 1)])))  # fmt: skip
        self.check("src_labels must have num_labels = 4, got 5", src_labels=rg.ShortestPath(3)(BATCH))
        self.check(r"tgt_labels must cover \[N_q, N_k\] = \[4, 4\], got \[3, 3\]", tgt_labels=DISTANCES(3))
        self.check("tgt_labels must have num_labels = 5, got 3", tgt_labels=rg.ClippedDistance(1)(4))
        self.check("tgt_labels must not be packed, .* got BlockLabels", tgt_labels=PATHS(BATCH))
        crossing = {"memory_labeler": DISTANCES}
        match = r"memory_labels must cover \[N_q, N_k\] = \[4, 5\], got \[4, 9\]"
        self.check(match, memory_labels=DISTANCES(4, 9), options=crossing)
        packed = DISTANCES(16, 9, ptr=torch.tensor([0, 3, 3, 7, 9]), q_ptr=torch.arange(5) * 4)
        self.check(r"memory_labels must have the borders \(ptr\) of src_labels", memory_labels=packed, options=crossing)
        packed = DISTANCES(16, 9, ptr=BATCH.ptr, q_ptr=torch.tensor([0, 3, 8, 12, 16]))
        self.check(r"memory_labels must have borders \(q_ptr\) at every 4", memory_labels=packed, options=crossing)

    def test_ids_without_tables(self):
        bare = {"labeler": None, "target_labeler": None}
        end = "carry no ids for a layer without tables, which would ignore them: give the"
        labels = PATHS(BATCH)
        self.check(f"src_labels must say who attends and {end} model a labeler", src_labels=labels, options=bare)
        self.check(
            f"tgt_labels .* {end} model a labeler", tgt_labels=DISTANCES(4), options={"target_labeler": rg.Window()}
        )
        self.check(
            f"memory_labels .* {end} model an argument memory_labeler", memory_labels=DISTANCES(4, 5, q_offset=0)
        )
        self.check("src_labels must be Labels, .* got Graph", src_labels=BATCH, options=bare, error=TypeError)

    def test_packed_cross_labels_with_a_cache(self):
        nodes, tgt = inputs()
        labels = rg.Window()(16, 9, ptr=BATCH.ptr, q_ptr=torch.arange(5) * 4)
        model = make()
        close(model.decode(tgt, nodes, memory_labels=labels), model.decode(tgt, nodes, memory_ptr=BATCH.ptr))
        with pytest.raises(NotImplementedError, match="^memory_labels must not be packed with a cache"):
            model.decode(tgt, nodes, memory_labels=labels, cache=model.new_cache())
