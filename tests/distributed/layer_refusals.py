"""Calls within a region that all processes must refuse alike, and the error that they must raise."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import relgraph as rg
from tests.distributed.worlds import caught
from tests.layers import attention_layer, encoder_layer

B, E, H = 2, 16, 4


def refusals(mesh):
    """For each call the error that is wanted, as part of its name, and what came."""
    calls, rank = Calls(mesh), mesh.get_local_rank()
    for at, (said, call) in enumerate([*calls.different(), *calls.of_other_lengths(), *calls.unsupported()]):
        with rg.distributed.context_parallel(mesh):
            yield ("refused", at, said), caught(call)
    region = rg.distributed.context_parallel(mesh, layout=("even", "head-tail")[min(rank, 1)])
    said = "ValueError: layout must be the same .*, got even on process 0, head-tail on"
    yield ("refused", "layouts", said), caught(region.__enter__)


class Calls:
    """Calls of a function and of a layer; on process 1 (``last``) something differs."""

    def __init__(self, mesh):
        self.whole, self.first, self.last = 4 * mesh.size(), mesh.get_local_rank() == 0, mesh.get_local_rank() == 1
        self.q, self.x, self.table = torch.randn(B, H, 4, 8), torch.randn(B, 4, E), torch.randn(7, 8)
        self.labels = rg.ClippedDistance(3)(self.whole)
        self.short = self.q[:, :, : 4 - self.last]
        self.module = attention_layer(E, H, num_labels=7)

    def attend(self, **more):
        call = {"query": self.q, "key": self.q, "value": self.q, "labels": self.labels, "key_table": self.table}
        return partial(rg.relation_attention_with_aux, **call | more)

    def layer(self, **more):
        return partial(self.module, **{"query": self.x, "labels": self.labels} | more)

    def different(self):
        """Arguments that would change the answer, or what travels."""
        last, q, table, score = self.last, self.q, self.table, rg.score.Additive
        mask = torch.ones(4, self.whole)
        same = "must be the same on all processes, got .* on process 0, .* process 1"
        for more in (
            {"dropout_p": 0.5 if last else 0.4},
            {"dropout_p": 0.5 * last},
            {"is_causal": last},
            {"scale": 1.0 if last else None},
            {"q_offset": 1 if last else 0},
            {"q_offset": torch.tensor(int(last))},
            {"score": rg.score.Softcap(2.0 if last else 3.0)},
            {"score": score(torch.ones(H, 8) if last else torch.ones(8))},
            {"score": score(torch.ones(8), torch.tanh if last else torch.relu)},
            {"score": nn.LeakyReLU(0.1 if last else 0.2)},
            {"value_table": table if last else None},
            {"key_table": table.expand(H, 7, 8) if last else table},
            {"attn_mask": mask > 0 if last else mask},
            {"attn_mask": mask if last else None},
            {"attn_mask": mask[None, None] if last else mask},
            {"row_scores": torch.zeros(B, H, 4, 7) if last else None},
            {"value_map": torch.zeros(7, 8, 8) if last else None},
            {"content_bias": torch.zeros(H, 8) if last else None},
            {"enable_gqa": last},
            {"impl": "dense" if last else "chunked"},
            {"need_label_mass": last},
            {"need_lse": last},
            {"need_weights": last},
            {"value": q[..., : 8 - last]},
            {"value": q.double() if last else q},
            {"key": q.clone().requires_grad_(last)},
            {"query": torch.cat([q, q]) if last else q},
            {"labels": self.labels.to_dense()[0].roll(int(last))},
        ):
            tables = {} if {"score", "row_scores", "key_table"} & set(more) else {"bias_table": table[:, 0]}
            given = {"key_table": None} | tables | more
            yield f"ValueError: {next(iter(more))} {same}", self.attend(**given)

        def under_autocast():
            with torch.autocast("cpu", enabled=last):
                self.attend()()

        yield f"ValueError: the dtype of autocast {same}", under_autocast

    def of_other_lengths(self):
        last, q, layer = self.last, self.q, self.layer
        rows = rg.DenseLabels(torch.zeros(4 - last, self.whole, dtype=torch.int64), 7)
        longer = rg.ClippedDistance(3)(self.whole + last)
        stack = rg.RelationEncoder(encoder_layer(E, H, 32, 0.0, labeler=rg.ClippedDistance(3)), 1)
        own = self.x[:, : 4 - last]
        yield (
            r"ValueError: query must be the same .*, 4, 8\] on process 0, .*, 3, 8\] on",
            self.attend(query=self.short),
        )
        keys = self.attend(key=self.short, value=self.short)
        yield r"ValueError: key must be the same .*, 4, 8\] on process 0, .*, 3, 8\] on process 1", keys
        yield "ValueError: labels must be the same .*digest .* on process 0, .*", self.attend(labels=longer)
        yield "ValueError: labels must ", self.attend(labels=rows)
        yield r"ValueError: query must be the same .*, 4, 16\] on process 0, .*, 3, 16\] on", layer(query=own)
        yield r"ValueError: query must be the same .*, 15\] on process 1", layer(query=self.x[..., : E - last])
        yield "ValueError: the number of rows must be the same .*, got 4 on process 0, 3 on", partial(stack, own)
        yield r"ValueError: labels must cover .*, got \[\d+, \d+\]; on process 1", layer(labels=longer)
        mask = torch.zeros(4, 9 if last else 8).bool()
        yield r"ValueError: attn_mask must be the same .*, 8\] on process 0, .*, 9\] on", layer(attn_mask=mask)
        packed = rg.ClippedDistance(3)(self.whole, ptr=torch.tensor([0, 3, self.whole]))
        flat = dict.fromkeys(("query", "key", "value"), q[0].transpose(0, 1))
        nothing = "ValueError: labels must be the same .* on process 0, nothing on process 1"
        yield nothing, self.attend(**flat, labels=packed if self.first else self.labels)
        yield "ValueError: attn_mask must have all .* keys", self.attend(attn_mask=torch.zeros(4, 3), query=q)

    def unsupported(self):
        """Calls that no process can answer, some for what only one of them sees."""
        nodes, edges = torch.randn(4, 2, 8), rg.EdgeLabels(torch.tensor([[0], [1]]), torch.tensor([0]), 7, q_len=4)
        pairs, ids = torch.tensor([[1, 1, 0], [0, 0, self.whole - 1]]), torch.tensor([0, 1, 2])
        twice = rg.EdgeLabels(pairs, ids, 7, q_len=self.whole)
        summed = rg.EdgeLabels(pairs, ids, 7, q_len=self.whole, default=0, duplicates="sum")
        keys = torch.cat([self.q, self.q], 2)
        yield r"ValueError: labels must cover \[N_q, N_k\]", self.layer(labels=rg.ClippedDistance(3)(4))
        yield "NotImplementedError: need_weights", self.layer(need_weights=True)
        yield "NotImplementedError: cache must be None within context_parallel", self.layer(cache=rg.KVCache())
        over_edges = partial(rg.edge_attention, nodes, nodes, nodes, edges, self.table)
        yield "NotImplementedError: edge_attention attends to the nodes that this process holds", over_edges
        yield "NotImplementedError: edge_attr", self.attend(labels=edges, edge_attr=torch.randn(1, 3))
        once = "NotImplementedError: impl='chunked' has one score per pair, so parallel edges cannot"
        yield once, self.attend(labels=twice, impl="chunked")
        maps = self.attend(labels=summed, key_table=None, value_map=torch.randn(7, 8, 8))
        yield "NotImplementedError: value_map needs one label per pair, got edges with duplicates=", maps
        order = self.attend(key=keys, value=keys, labels=None, key_table=None, is_causal=True)
        yield "ValueError: q_offset must be given with is_causal when queries and keys diff", order
