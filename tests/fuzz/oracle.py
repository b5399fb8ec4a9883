"""The answer of a call in float64, pair by pair from the description, and how far rounding may move it.

Forward and backward are written out by hand for one query row at a time::

    s_e = scale · (q·(k_e + Σ a^K) + k_e·Σ a^Q) + Σ b + m_e        e: a pair, or one of parallel edges
    w = softmax(s), lse = log Σ exp(s), d_e = w_e keep_e / (1 - p)
    z = Σ d_e (v_e + Σ a^V),  mass_r = Σ w_e [r is a label of e]
    ds_e = w_e (dw_e - Σ w dw + dlse)

Beside each number goes a bound on its error: what the same sums may come to in arithmetic with relative error ``unit``,
in any order. It follows from the sizes of the terms, so it needs no other implementation to compare with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.fuzz.cases import Case
from tests.fuzz.labels import entries

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
"""Half the distance from 1 to the next number."""

SLACK = 8
"""Roundings that every number is allowed beside those of its sums: exponentials, quotients, factors."""

INF = float("inf")


@dataclass
class Truth:
    """By name: the value, and the bound on its error."""

    values: dict
    bounds: dict


def solve(case: Case, dtype: torch.dtype) -> Truth:
    """All outputs, and the gradients of all leaves under the incoming gradients; bounds for arithmetic in ``dtype``."""
    rows = (case.frame.batch, case.heads, case.frame.q_len)
    shapes: dict = {"z": (*rows, case.value_size), "lse": rows, "weights": (*rows, case.frame.k_len)}
    shapes.update({("mass", part): (*rows, count) for part, count in enumerate(case.num_labels)})
    shapes.update({("grad", name): leaf.shape for name, leaf in case.leaves.items()})
    values, bounds = ({name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()} for _ in "vb")
    truth = Truth(values, bounds)
    values["lse"].fill_(-INF)
    for b in range(case.frame.batch):
        for i in range(case.frame.q_len):
            found = [
                (j, labels)
                for j in range(case.frame.k_len)
                if not _in_future(case, b, i, j)
                for labels in entries(case.labels, case.frame, b, i, j)
            ]
            if found:
                _Row(case, b, i, found, dtype).solve(truth)
    _round_sums(truth, dtype)
    return truth


def _in_future(case: Case, b: int, i: int, j: int) -> bool:
    distance = case.frame.distance(b, i, j)
    return distance is None or (case.is_causal and distance > 0)


def _round_sums(truth: Truth, dtype: torch.dtype) -> None:
    """What leaving rounds, and numbers so small that they have fewer digits."""
    for name, bound in truth.bounds.items():
        value = truth.values[name]
        bound.add_(torch.where(value.isfinite(), value.abs(), 0.0), alpha=4 * UNITS[dtype])
        bound.add_(torch.finfo(dtype).tiny)


class _Row:
    """One query of one batch row, all heads: vectors over its entries, ``[H, E]``."""

    def __init__(self, case: Case, b: int, i: int, found: list, dtype: torch.dtype) -> None:
        self.case, self.b, self.i = case, b, i
        self.unit, self.tiny = UNITS[dtype], torch.finfo(dtype).tiny
        self.keys = torch.tensor([j for j, _ in found])
        self.kv = torch.arange(case.heads) // (case.heads // case.kv_heads)
        self.labels = []  # by part: which entry, which label
        for part in range(len(case.num_labels)):
            pairs = [(e, label) for e, (_, labels) in enumerate(found) for label in labels[part]]
            self.labels.append(torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T)
        self.most = max([len(label) for _, labels in found for label in labels], default=0)

    def leaf(self, name: str) -> Tensor:
        """Keys or values of the entries, ``[H, E, D]``."""
        return self.case.leaves[name][self.b][self.kv][:, self.keys]

    def rows(self, kind: str, *, size: bool = False) -> Tensor:
        """The sum of each entry's rows of the tables of a kind, ``[H, E, D]``; of their sizes if wanted."""
        width = {"key": self.case.size, "query": self.case.size, "value": self.case.value_size, "bias": 1}[kind]
        total = torch.zeros(self.case.heads, len(self.keys), width, dtype=torch.float64)
        for part, (entry, label) in enumerate(self.labels):
            table = self.case.leaves.get((kind, part))
            if table is not None:
                table = table[..., None] if kind == "bias" else table
                table = table.expand(self.case.heads, *table.shape[-2:])[:, label]
                total.index_add_(1, entry, table.abs() if size else table)
        return total

    def masks(self) -> tuple[Tensor, Tensor]:
        """What the mask adds, and whether the entry is seen, ``[H, E]``."""
        added = torch.zeros(self.case.heads, len(self.keys), dtype=torch.float64)
        seen = torch.ones_like(added, dtype=torch.bool)
        if self.case.bool_mask is not None:
            seen = self._window(self.case.bool_mask)
        if "mask" in self.case.leaves:
            added = self._window(self.case.leaves["mask"])
            seen = seen & (added > -INF)
        return torch.where(seen, added, 0.0), seen

    def _window(self, x: Tensor) -> Tensor:
        b, h, i, j = self._at(x)
        return x[b, h[:, None], i, j]

    def _at(self, x: Tensor) -> tuple[int, Tensor, int, Tensor]:
        """Where this row's entries stand in something that broadcasts to all pairs."""
        heads = torch.arange(self.case.heads)
        return (
            self.b if x.shape[0] > 1 else 0,
            heads if x.shape[1] > 1 else 0 * heads,
            self.i if x.shape[2] > 1 else 0,
            self.keys if x.shape[3] > 1 else 0 * self.keys,
        )

    def solve(self, truth: Truth) -> None:
        """Adds the row's share to every output and gradient, and to their bounds."""
        case, unit, scale = self.case, self.unit, self.case.factor
        query = case.leaves["query"][self.b, :, self.i][:, None]  # [H, 1, D]
        key, value = self.leaf("key"), self.leaf("value")
        a_key, a_query, a_value = self.rows("key"), self.rows("query"), self.rows("value")
        bias, (added, seen) = self.rows("bias")[..., 0], self.masks()
        score = scale * ((query * (key + a_key)).sum(-1) + (key * a_query).sum(-1)) + bias
        terms = abs(scale) * (
            (query.abs() * (key.abs() + self.rows("key", size=True))).sum(-1)
            + (key.abs() * self.rows("query", size=True)).sum(-1)
        )
        terms = terms + self.rows("bias", size=True)[..., 0]
        swallowed = added.abs() * unit / 4 > terms  # a number so large that adding the score changes nothing
        score = (score + added).masked_fill(~seen, -INF)
        top = score.amax(-1, keepdim=True)
        sees = top > -INF
        top = torch.where(sees, top, 0.0)
        grown = (score - top).exp()
        total = torch.where(sees, grown.sum(-1, keepdim=True), 1.0)
        weights, lse = grown / total, top + total.log()

        # errors of scores, of the log-sum-exp, and so of weights
        depth = (case.size + SLACK + self.most) * unit
        error = depth * (torch.where(swallowed, 0.0, terms + added.abs()) + 1.0)
        error = torch.where(seen, error, 0.0)
        away = torch.where(seen, score - lse, -INF)
        error = error + depth * torch.where(swallowed | ~seen, 0.0, lse.abs())
        up = torch.where(sees, (away + error).exp().sum(-1, keepdim=True).log(), 0.0)
        down = torch.where(sees, -(away - error).exp().sum(-1, keepdim=True).log(), 0.0)
        lse_error = torch.maximum(up, down) + 4 * unit
        most = (away + error + lse_error).clamp(max=0.0).exp()
        weight_error = torch.maximum(most - weights, weights - (away - error - lse_error).exp()).clamp(min=0.0)
        count = (len(self.keys) + case.size + case.value_size + SLACK + self.most) * unit
        weight_error = weight_error + count * weights + self.tiny

        keep = torch.ones_like(weights)
        if case.keep is not None:
            keep = self._window(case.keep) / (1.0 - case.dropout_p)
        dropped = weights * keep
        values, value_sizes = value + a_value, value.abs() + self.rows("value", size=True)
        at = (self.b, slice(None), self.i)
        row = torch.where(sees[..., 0], 1.0, 0.0)
        truth.values["z"][at] = (dropped[..., None] * values).sum(1)
        truth.bounds["z"][at] = ((weight_error * keep + count * dropped)[..., None] * value_sizes).sum(1)
        truth.values["lse"][at] = torch.where(sees, lse, -INF)[..., 0]
        truth.bounds["lse"][at] = (lse_error + 8 * unit * lse.abs())[..., 0] * row
        index = self.keys.expand(case.heads, -1)
        truth.values["weights"][at] = truth.values["weights"][at].scatter_add(1, index, weights)
        truth.bounds["weights"][at] = truth.bounds["weights"][at].scatter_add(1, index, weight_error)
        for part, (entry, label) in enumerate(self.labels):
            truth.values["mass", part][at] = truth.values["mass", part][at].index_add(1, label, weights[:, entry])
            bound = weight_error[:, entry] + count * weights[:, entry]
            truth.bounds["mass", part][at] = truth.bounds["mass", part][at].index_add(1, label, bound)

        # backward
        dz, dlse, d_weights, d_weight_sizes = self._incoming(keep, values, value_sizes)
        mean = (weights * d_weights).sum(-1, keepdim=True)
        d_score = weights * (d_weights - mean + dlse)
        held = (weights * d_weight_sizes).sum(-1, keepdim=True)
        sizes = d_weight_sizes + held + dlse.abs()
        mean_error = (weight_error * d_weight_sizes + count * weights * d_weight_sizes).sum(-1, keepdim=True)
        d_error = weight_error * sizes + weights * (2 * count * sizes + mean_error)
        # each of these is summed over up to as many rows and heads as there are
        many = count + math.log2(2 + case.frame.batch * case.heads * case.frame.q_len) * 4 * unit
        d_error = d_error + many * weights * sizes
        drop_error = weight_error * keep + (count + many) * dropped
        self._leave(
            truth, "query", d_score * scale, d_error * abs(scale), key + a_key, key.abs() + self.rows("key", size=True)
        )
        self._leave(
            truth,
            "key",
            d_score * scale,
            d_error * abs(scale),
            query + a_query,
            query.abs() + self.rows("query", size=True),
        )
        self._leave(truth, "value", dropped, drop_error, dz[:, None], dz.abs()[:, None])
        self._leave_tables(truth, "key", d_score * scale, d_error * abs(scale), query)
        self._leave_tables(truth, "query", d_score * scale, d_error * abs(scale), key)
        self._leave_tables(truth, "value", dropped, drop_error, dz[:, None])
        self._leave_tables(truth, "bias", d_score, d_error, torch.ones(1, 1, 1, dtype=torch.float64))
        if "mask" in case.leaves:
            b, h, i, j = self._at(case.leaves["mask"])
            h, j = (x.expand(case.heads, len(self.keys)) for x in (h[:, None], j))
            place = (torch.tensor(b), h, torch.tensor(i), j)
            truth.values["grad", "mask"].index_put_(place, d_score, accumulate=True)
            truth.bounds["grad", "mask"].index_put_(place, d_error, accumulate=True)

    def _incoming(self, keep: Tensor, values: Tensor, value_sizes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of z ``[H, D_v]``, of lse ``[H, 1]`` and of the weights ``[H, E]``, and the sizes of the latter's terms."""
        case, at = self.case, (self.b, slice(None), self.i)

        def of(name: object, *shape: int) -> Tensor:
            found = case.incoming.get(name)
            return torch.zeros(case.heads, *shape, dtype=torch.float64) if found is None else found[at]

        dz, dlse = of("z", case.value_size), of("lse")[:, None]
        d_weights = keep * (dz[:, None] * values).sum(-1)
        sizes = keep * (dz[:, None].abs() * value_sizes).sum(-1)
        d_all = of("weights", case.frame.k_len)[:, self.keys]
        d_weights, sizes = d_weights + d_all, sizes + d_all.abs()
        for part, (entry, label) in enumerate(self.labels):
            d_mass = of(("mass", part), case.num_labels[part])[:, label]
            d_weights, sizes = d_weights.index_add(1, entry, d_mass), sizes.index_add(1, entry, d_mass.abs())
        return dz, dlse, d_weights, sizes

    def _leave(self, truth: Truth, name: str, factor: Tensor, error: Tensor, rows: Tensor, sizes: Tensor) -> None:
        """Adds ``factor · rows`` of each entry to the gradient of query, key or value."""
        for place, product in ((truth.values, factor[..., None] * rows), (truth.bounds, error[..., None] * sizes)):
            grad = place["grad", name]
            if name == "query":
                grad[self.b, :, self.i] += product.sum(1)
            else:
                heads, keys = (x.expand(self.case.heads, len(self.keys)) for x in (self.kv[:, None], self.keys))
                grad[self.b].index_put_((heads, keys), product, accumulate=True)

    def _leave_tables(self, truth: Truth, kind: str, factor: Tensor, error: Tensor, rows: Tensor) -> None:
        """Adds ``factor · rows`` of each entry to the row of each of its labels."""
        for part, (entry, label) in enumerate(self.labels):
            if (kind, part) not in self.case.leaves:
                continue
            for place, products in (
                (truth.values, factor[..., None] * rows),
                (truth.bounds, error[..., None] * rows.abs()),
            ):
                grad = place["grad", (kind, part)]
                grad = grad[..., None] if kind == "bias" else grad
                mine = products[:, entry]
                if grad.dim() == 3:
                    grad.index_add_(1, label, mine)
                else:
                    grad.index_add_(0, label, mine.sum(0))
