"""The answer of a call in float64, pair by pair from the description, and how far rounding may move it.

Forward and backward are written out by hand for one query row at a time::

    r_e = Σ a^K + Σ W_k x, or with an additive score          e: a pair, or one of parallel edges
    c_e = (q + b_c)·M k_e + (q + b_p)·r_e + k_e·Σ a^Q,   c_e = u · act(q + k_e + r_e)
    s_e = f(scale · c_e + Σ b + Σ g_i) + m_e
    w = softmax(s), lse = log Σ exp(s), d_e = w_e keep_e / (1 - p); a sink is one more s, whose d is 0
    z = Σ d_e (N v_e + Σ a^V + Σ W_v x),  mass_r = Σ w_e [r is a label of e]
    ds_e = w_e (dw_e - Σ w dw + dlse)

M and N are the maps of the label of e, the identity where there is none, or a gate as their diagonal; f, x, M, N, u, g and the biases of the query,
b_c and b_p, are left out of most calls. A label may have a weight, which multiplies its rows and its share of the mass.

Beside each number goes a bound on its error: what the same sums may come to in arithmetic with relative error ``unit``,
in any order. It follows from the sizes of the terms, so it needs no other implementation to compare with. Errors go
through a function with its slope; where that jumps, within the error of its argument either slope may be taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.fuzz.cases import Case
from tests.fuzz.labels import entries, numbers

UNITS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
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
                (j, labels, edges)
                for j in range(case.frame.k_len)
                if not _in_future(case, b, i, j)
                for labels, edges in _entries(case, b, i, j)
            ]
            if found:
                _Row(case, b, i, found, dtype).solve(truth)
            elif "sink" in case.leaves:
                values["lse"][b, :, i] = case.leaves["sink"]
                if "lse" in case.incoming:
                    values["grad", "sink"] += case.incoming["lse"][b, :, i]
                    bounds["grad", "sink"] += UNITS[_summed_in(dtype)] * case.incoming["lse"][b, :, i].abs()
    _round_sums(truth, dtype, 4 + case.frame.batch * case.frame.q_len)
    return truth


def _in_future(case: Case, b: int, i: int, j: int) -> bool:
    distance = case.frame.distance(b, i, j)
    return distance is None or (case.is_causal and distance > 0)


def _entries(case: Case, b: int, i: int, j: int) -> list[tuple[list, list]]:
    """What attends at a pair: labels by part, and the edges whose vectors it carries."""
    found = entries(case.labels, case.frame, b, i, j)
    edges = numbers(case.labels, b, i, j) if "attr" in case.leaves else [[]] * len(found)
    return list(zip(found, edges, strict=True))


def _round_sums(truth: Truth, dtype: torch.dtype, most: int) -> None:
    """What leaving rounds, and numbers so small that they have fewer digits; up to ``most`` of them are added."""
    for name, bound in truth.bounds.items():
        value = truth.values[name]
        stored = _summed_in(dtype) if name == "lse" else dtype
        bound.add_(torch.where(value.isfinite(), value.abs(), 0.0), alpha=4 * UNITS[stored])
        bound.add_(torch.finfo(_summed_in(dtype)).tiny)
        bound.add_(torch.finfo(dtype).smallest_normal, alpha=most * UNITS[dtype])


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    """What scores and sums are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Known(NamedTuple):
    """Numbers, and how large the error of each may be (of inputs: how large the sums that made it)."""

    value: Tensor
    size: Tensor

    def __add__(self, other: Known) -> Known:
        return Known(self.value + other.value, self.size + other.size)

    def entry(self, index: Tensor) -> Known:
        """Those of some entries, of ``[H, E, ...]``."""
        return Known(self.value[:, index], self.size[:, index])


def _exact(x: Tensor) -> Known:
    return Known(x, x.abs())


def _times(factor: Known, rows: Known) -> Known:
    """A factor for each entry ``[H, E]`` times rows ``[H, E, ...]``, where the factor has an error."""
    at = (..., *(None,) * (rows.value.dim() - 2))
    return Known(factor.value[at] * rows.value, factor.size[at] * rows.size)


def _product(one: Known, other: Known) -> Known:
    """Two of one shape, number by number."""
    return Known(one.value * other.value, one.size * other.size)


class _Row:
    """One query of one batch row, all heads: vectors over its entries, ``[H, E]``."""

    def __init__(self, case: Case, b: int, i: int, found: list, dtype: torch.dtype) -> None:
        self.case, self.b, self.i = case, b, i
        summed = _summed_in(dtype)
        self.unit, self.tiny = UNITS[summed], torch.finfo(summed).tiny
        # weights and what leaves in a half type are rounded to it, and gradients of a leaf are added in it
        self.rounding = 0.0 if dtype == summed else 4 * UNITS[dtype]
        self.keys = torch.tensor([j for j, _, _ in found])
        self.kv = torch.arange(case.heads) // (case.heads // case.kv_heads)
        self.labels = []  # by part: which entry, which label
        for part in range(len(case.num_labels)):
            self.labels.append(
                _places([(e, label) for e, (_, labels, _) in enumerate(found) for label in labels[part]])
            )
        self.vectors = _places([(e, edge) for e, (_, _, edges) in enumerate(found) for edge in edges])
        self.most = max([len(label) for _, labels, _ in found for label in labels], default=0)
        # sums that only some calls have: by a map, over bases, over the numbers of a vector, over vectors of a pair
        if case.score is not None and case.score.kind == "bilinear":
            self.most += case.size
        if "maps" in case.leaves or "bases" in case.leaves:
            self.most += case.value_size + case.leaves.get("bases", case.leaves.get("maps")).shape[-3]
        if "attr" in case.leaves:
            self.most += case.leaves["attr"].shape[-1] + max(len(edges) for _, _, edges in found)

    def leaf(self, name: str) -> Tensor:
        """Keys or values of the entries, ``[H, E, D]``."""
        return self.case.leaves[name][self.b][self.kv][:, self.keys]

    def rows(self, kind: str) -> Known:
        """The sum of each entry's rows of the tables of a kind, ``[H, E, D]``; scores by row are those of a kind too."""
        case, heads, count = self.case, self.case.heads, len(self.keys)
        width = {"key": case.size, "query": case.size, "value": case.value_size}.get(kind, 1)
        total = torch.zeros(2, heads, count, width, dtype=torch.float64)
        for part, (entry, _) in enumerate(self.labels):
            if (kind, part) in case.leaves:
                table = self.of_labels(kind, part)
                total[0].index_add_(1, entry, table)
                total[1].index_add_(1, entry, table.abs())
        return Known(*total)

    def of_labels(self, kind: str, part: int) -> Tensor:
        """The row of a table for each label of an entry, ``[H, n, D]``."""
        table, label = self.case.leaves[kind, part], self.labels[part][1]
        table = table[self.b, :, self.i] if kind == "rows" else table
        table = table[..., None] if kind in ("bias", "rows") else table
        table = table[self.b] if table.dim() == 4 else table
        return table.expand(self.case.heads, *table.shape[-2:])[:, label]

    def carried(self, name: str, width: int) -> Known:
        """What a map makes of the vectors of each entry, ``[H, E, D]``; zeros without the map."""
        total = torch.zeros(2, self.case.heads, len(self.keys), width, dtype=torch.float64)
        if name in self.case.leaves:
            entry, edge = self.vectors
            attr, maps = self.case.leaves["attr"][edge], self.case.leaves[name]
            maps = maps.expand(self.case.heads, *maps.shape[-2:])
            total[0].index_add_(1, entry, attr @ maps.mT)
            total[1].index_add_(1, entry, attr.abs() @ maps.mT.abs())
        return Known(*total)

    def maps(self, maps: Known) -> Known:
        """The map of each entry's label, ``[H, E, D, D]``, the identity without one; sizes have the identity added.

        Args:
            maps: ``[R, D, D]`` or ``[H, R, D, D]``.
        """
        (entry, label), size = self.labels[0], maps.value.shape[-1]
        identity = torch.eye(size, dtype=torch.float64)
        found = identity.expand(self.case.heads, len(self.keys), size, size).clone()
        sizes = found.clone()
        found[:, entry] = maps.value.expand(self.case.heads, *maps.value.shape[-3:])[:, label]
        sizes[:, entry] += maps.size.expand(self.case.heads, *maps.size.shape[-3:])[:, label]
        return Known(found, sizes)

    def gate(self, name: str) -> Known | None:
        """The gate of each entry's label, ``[H, E, D]``, ones without a label; None without gates of this name."""
        gates = self.case.leaves.get(name)
        if gates is None:
            return None
        (entry, label), heads = self.labels[0], self.case.heads
        found = torch.ones(heads, len(self.keys), gates.shape[-1], dtype=torch.float64)
        found[:, entry] = gates.expand(heads, *gates.shape[-2:])[:, label]
        return _exact(found)

    def value_maps(self) -> Known | None:
        """The maps of values, free ones written out."""
        leaves = self.case.leaves
        if "maps" in leaves:
            return self.maps(_exact(leaves["maps"]))
        if "bases" not in leaves:
            return None
        spread = "...rk,...kij->...rij"
        coefficients, bases = leaves["coefficients"], leaves["bases"]
        return self.maps(
            Known(torch.einsum(spread, coefficients, bases), torch.einsum(spread, coefficients.abs(), bases.abs()))
        )

    def masks(self) -> tuple[Tensor, Tensor]:
        """What the mask adds, and whether the entry is seen, ``[H, E]``."""
        added = torch.zeros(self.case.heads, len(self.keys), dtype=torch.float64)
        seen = torch.ones_like(added, dtype=torch.bool)
        if self.case.bool_mask is not None:
            seen = self._window(self.case.bool_mask)
        if "mask" in self.case.leaves:
            added = self._window(self.case.leaves["mask"])
            seen = seen & (added > -INF)
        if self.case.lost is not None:
            seen = seen & ~self.case.lost[self.b][self.kv][:, self.keys]
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
        case, unit = self.case, self.unit
        depth = (case.size + SLACK + self.most) * unit
        additive = case.score is not None and case.score.kind == "additive"
        compared = _Additive(self, depth) if additive else _Product(self, depth)
        value, value_maps = self.leaf("value"), self.value_maps()
        more = self.rows("bias") + self.rows("rows")
        added, seen = self.masks()
        score = case.factor * compared.score.value + more.value[..., 0]
        terms = abs(case.factor) * compared.score.size + more.size[..., 0]
        error, slope = depth * terms, Known(torch.ones_like(score), torch.ones_like(score))
        slope_error = torch.zeros_like(score)
        if case.score is not None and case.score.kind == "function":
            assert case.score.curve is not None
            found = case.score.curve.at(score, error + depth, SLACK * unit)
            score, terms, error = found.value, found.value.abs(), found.error
            slope, slope_error = Known(found.slope, found.slope.abs() + found.slope_error), found.slope_error
        swallowed = added.abs() * unit / 4 > terms  # a number so large that adding the score changes nothing
        score = (score + added).masked_fill(~seen, -INF)
        sink = case.leaves.get("sink", torch.full((case.heads,), -INF, dtype=torch.float64))[:, None]
        top = torch.maximum(score.amax(-1, keepdim=True), sink)
        sees = top > -INF
        top = torch.where(sees, top, 0.0)
        grown = (score - top).exp()
        of_sink, of_keys = (sink - top).exp(), grown.sum(-1, keepdim=True)
        total = torch.where(sees, of_keys + of_sink, 1.0)
        weights, of_sink, lse = grown / total, of_sink / total, top + total.log()

        # errors of scores, of the log-sum-exp, and so of weights
        error = torch.where(swallowed, 0.0, error + depth * added.abs()) + depth
        error = torch.where(seen, error, 0.0)
        away = torch.where(seen, score - lse, -INF)
        error = error + depth * torch.where(swallowed | ~seen, 0.0, lse.abs())
        if "sink" in case.leaves:  # which joins the log-sum-exp of all keys
            error = error + depth * torch.where(seen, (top + of_keys.log()).abs() + sink.abs(), 0.0)
        up = torch.where(sees, ((away + error).exp().sum(-1, keepdim=True) + of_sink).log(), 0.0)
        down = torch.where(sees, -((away - error).exp().sum(-1, keepdim=True) + of_sink).log(), 0.0)
        lse_error = torch.maximum(up, down) + 4 * unit
        most = (away + error + lse_error).clamp(max=0.0).exp()
        weight_error = torch.maximum(most - weights, weights - (away - error - lse_error).exp()).clamp(min=0.0)
        count = (len(self.keys) + case.size + case.value_size + SLACK + self.most) * unit
        weight_error = weight_error + count * weights + self.tiny

        keep = torch.ones_like(weights)
        if case.keep is not None:
            keep = self._window(case.keep) / (1.0 - case.dropout_p)
        dropped = weights * keep
        mapped = _exact(value)
        if value_maps is not None:
            mapped = Known(_apply(value_maps.value, value), _apply(value_maps.size, value.abs()))
        gate = self.gate("value_gate")
        if gate is not None:
            mapped = _product(gate, mapped)
        carried = mapped + self.rows("value") + self.carried("edge_value", case.value_size)
        values, value_sizes = carried.value, carried.size
        at = (self.b, slice(None), self.i)
        row = torch.where(sees[..., 0], 1.0, 0.0)
        truth.values["z"][at] = (dropped[..., None] * values).sum(1)
        rounded = count + self.rounding
        truth.bounds["z"][at] = ((weight_error * keep + rounded * dropped)[..., None] * value_sizes).sum(1)
        truth.values["lse"][at] = torch.where(sees, lse, -INF)[..., 0]
        truth.bounds["lse"][at] = (lse_error + 8 * unit * lse.abs())[..., 0] * row
        index = self.keys.expand(case.heads, -1)
        truth.values["weights"][at] = truth.values["weights"][at].scatter_add(1, index, weights)
        truth.bounds["weights"][at] = truth.bounds["weights"][at].scatter_add(1, index, weight_error)
        for part, (entry, label) in enumerate(self.labels):
            share, bound = weights[:, entry], weight_error[:, entry] + count * weights[:, entry]
            truth.values["mass", part][at] = truth.values["mass", part][at].index_add(1, label, share)
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
        many = rounded + math.log2(2 + case.frame.batch * case.heads * case.frame.q_len) * 4 * unit
        d_error = d_error + many * weights * sizes
        if "mask" in case.leaves:
            self._add_to_mask(truth, Known(d_score, d_error))
        if "sink" in case.leaves:
            relative = many + 2 * count + lse_error + depth * sink.abs()
            sink_error = of_sink * mean_error + (of_sink * relative + SLACK * unit) * (held + dlse.abs())
            truth.values["grad", "sink"] += (of_sink * (dlse - mean))[:, 0]
            truth.bounds["grad", "sink"] += sink_error[:, 0]
        d_finished = Known(d_score * slope.value, d_error * slope.size + d_score.abs() * slope_error)
        for kind in ("bias", "rows"):
            self._add_to_tables(truth, kind, Known(*(x[..., None] for x in d_finished)))
        scaled = Known(d_finished.value * case.factor, d_finished.size * abs(case.factor))
        compared.backward(truth, scaled)
        drop = Known(dropped, weight_error * keep + (count + many) * dropped)
        per_value = _times(drop, _exact(dz[:, None]))
        self._add_to_tables(truth, "value", per_value)
        self._add_to_edges(truth, "edge_value", per_value)
        if gate is not None:
            self._add_by_label(truth, "value_gate", _product(per_value, _exact(value)))
            self._add_to_input(truth, "value", _product(per_value, gate))
        elif value_maps is None:
            self._add_to_input(truth, "value", per_value)
        else:
            back = Known(_apply(value_maps.value.mT, per_value.value), _apply(value_maps.size.mT, per_value.size))
            self._add_to_input(truth, "value", back)
            self._add_to_value_maps(truth, _outer(per_value, value))

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

    def _add_to_input(self, truth: Truth, name: str, grad: Known) -> None:
        """Adds what each entry ``[H, E, D]`` gives to the gradient of query, key or value."""
        for place, product in zip((truth.values, truth.bounds), grad, strict=True):
            whole = place["grad", name]
            if name == "query":
                whole[self.b, :, self.i] += product.sum(1)
            else:
                heads, keys = (x.expand(self.case.heads, len(self.keys)) for x in (self.kv[:, None], self.keys))
                whole[self.b].index_put_((heads, keys), product, accumulate=True)

    def _add_to_mask(self, truth: Truth, grad: Known) -> None:
        b, h, i, j = self._at(self.case.leaves["mask"])
        h, j = (x.expand(self.case.heads, len(self.keys)) for x in (h[:, None], j))
        for place, mine in zip((truth.values, truth.bounds), grad, strict=True):
            place["grad", "mask"].index_put_((torch.tensor(b), h, torch.tensor(i), j), mine, accumulate=True)

    def _add_to_tables(self, truth: Truth, kind: str, grad: Known) -> None:
        """Adds what each entry ``[H, E, D]`` gives to the row of each of its labels."""
        for part in range(len(self.labels)):
            if (kind, part) in self.case.leaves:
                self._add_by_label(truth, (kind, part), grad, part)

    def _add_by_label(self, truth: Truth, name: Any, grad: Known, part: int = 0) -> None:
        """Adds what each entry ``[H, E, ...]`` gives to the row of each of its labels in a leaf."""
        entry, label = self.labels[part]
        for place, mine in zip((truth.values, truth.bounds), grad.entry(entry), strict=True):
            whole = place["grad", name]
            if name[0] == "rows":
                whole = whole[self.b, :, self.i]
            if name[0] in ("bias", "rows"):
                whole = whole[..., None]
            if isinstance(name, tuple) and whole.dim() == 4:  # a table with a batch axis
                whole = whole[self.b]
            if whole.dim() == mine.dim() and whole.shape[0] == 1:
                whole.index_add_(1, label, mine.sum(0, keepdim=True))
            elif whole.dim() == mine.dim():
                whole.index_add_(1, label, mine)
            else:
                whole.index_add_(0, label, mine.sum(0))

    def _add_to_edges(self, truth: Truth, name: str, grad: Known) -> None:
        """Adds what each entry ``[H, E, D]`` gives to the vectors that it carries, and to their map."""
        if name not in self.case.leaves:
            return
        entry, edge = self.vectors
        attr, maps = self.case.leaves["attr"][edge], self.case.leaves[name]
        maps = maps.expand(self.case.heads, *maps.shape[-2:])
        pieces = zip(
            (truth.values, truth.bounds), grad.entry(entry), (attr, attr.abs()), (maps, maps.abs()), strict=True
        )
        for place, mine, vectors, each in pieces:
            place["grad", "attr"].index_add_(0, edge, (mine @ each).sum(0))
            _add_to_shared(place["grad", name], mine.mT @ vectors)

    def _add_to_value_maps(self, truth: Truth, grad: Known) -> None:
        """Adds the gradient of each entry's map ``[H, E, D, D]`` to the maps, or to coefficients and bases."""
        if "maps" in self.case.leaves:
            self._add_by_label(truth, "maps", grad)
            return
        (entry, label), heads = self.labels[0], self.case.heads
        coefficients, bases = self.case.leaves["coefficients"], self.case.leaves["bases"]
        coefficients = coefficients.expand(heads, *coefficients.shape[-2:])[:, label]
        bases = bases.expand(heads, *bases.shape[-3:])
        to_coefficients = Known(
            torch.einsum("heij,hkij->hek", grad.value, bases), torch.einsum("heij,hkij->hek", grad.size, bases.abs())
        )
        self._add_by_label(truth, "coefficients", to_coefficients)
        pieces = zip((truth.values, truth.bounds), grad.entry(entry), (coefficients, coefficients.abs()), strict=True)
        for place, mine, factors in pieces:
            _add_to_shared(place["grad", "bases"], torch.einsum("heij,hek->hkij", mine, factors))


class _Product:
    """(q + b_c)·M k + (q + b_p)·r + k·a^Q of every entry: the dot product, or with a map of the key for each label."""

    def __init__(self, row: _Row, depth: float) -> None:
        self.row, case = row, row.case
        self.query = case.leaves["query"][row.b, :, row.i][:, None]  # [H, 1, D]
        self.content, self.position = self._biased()
        self.key = row.leaf("key")
        self.maps = None
        if case.score is not None and case.score.kind == "bilinear":
            self.maps = row.maps(_exact(case.leaves["weight"]))
        self.mapped = _exact(self.key)
        if self.maps is not None:
            self.mapped = Known(_apply(self.maps.value, self.key), _apply(self.maps.size, self.key.abs()))
        self.gate = row.gate("key_gate")
        if self.gate is not None:
            self.mapped = _product(self.gate, self.mapped)
        self.of_query = row.rows("query")
        self.added = row.rows("key") + row.carried("edge_key", case.size)
        # the query with its bias is stored in the query's dtype
        stored = 1.0 + (row.rounding / depth if "content_bias" in case.leaves else 0.0)
        self.score = Known(
            (self.content.value * self.mapped.value + self.position.value * self.added.value).sum(-1)
            + (self.key * self.of_query.value).sum(-1),
            stored * (self.content.size * self.mapped.size + self.position.size * self.added.size).sum(-1)
            + (self.key.abs() * self.of_query.size).sum(-1),
        )

    def _biased(self) -> tuple[Known, Known]:
        """What is multiplied by keys and by their tables' rows; for these, q + b_c and b_p - b_c may be summed."""
        leaves, none = self.row.case.leaves, torch.zeros(self.query.shape[0], self.query.shape[-1], dtype=torch.float64)
        content, position = (_exact(leaves.get(name, none)[:, None]) for name in ("content_bias", "position_bias"))
        query = _exact(self.query)
        either = query + position
        return query + content, Known(either.value, either.size + 2 * content.size)

    def backward(self, truth: Truth, grad: Known) -> None:
        """Adds to the gradients of all that is compared, from that of each entry's score ``[H, E]``."""
        row, query = self.row, self.content
        row._add_to_input(truth, "query", _times(grad, self.mapped + self.added))
        self._add_to_bias(truth, "content_bias", _times(grad, Known(self.mapped.value, self._sizes())))
        self._add_to_bias(truth, "position_bias", _times(grad, self.added))
        row._add_to_tables(truth, "key", _times(grad, self.position))
        row._add_to_edges(truth, "edge_key", _times(grad, self.position))
        row._add_to_tables(truth, "query", _times(grad, _exact(self.key)))
        if self.maps is not None:
            row._add_by_label(truth, "weight", _outer(_times(grad, query), self.key))
            query = Known(_apply(self.maps.value.mT, self.query), _apply(self.maps.size.mT, self.query.abs()))
        if self.gate is not None:
            row._add_by_label(truth, "key_gate", _times(grad, _product(query, _exact(self.key))))
            query = _product(query, self.gate)
        row._add_to_input(truth, "key", _times(grad, query + self.of_query))

    def _sizes(self) -> Tensor:
        """What the gradient of b_c may be summed from: rows of tables enter it twice, with both signs."""
        return self.mapped.size + 2 * self.added.size

    def _add_to_bias(self, truth: Truth, name: str, grad: Known) -> None:
        if name in self.row.case.leaves:
            for place, mine in zip((truth.values, truth.bounds), grad, strict=True):
                place["grad", name] += mine.sum(1)


class _Additive:
    """u · act(q + k + r) of every entry."""

    def __init__(self, row: _Row, depth: float) -> None:
        self.row, case = row, row.case
        assert case.score is not None and case.score.curve is not None
        query, key = case.leaves["query"][row.b, :, row.i][:, None], row.leaf("key")
        weight = case.leaves["weight"]
        self.weight = weight.expand(case.heads, case.size)[:, None]  # [H, 1, D]
        summed = _exact(query) + _exact(key) + row.rows("key") + row.carried("edge_key", case.size)
        error = depth * summed.size
        self.act = case.score.curve.at(summed.value, error, SLACK * row.unit)
        # an activation is 0 at 0, so no larger than its argument times the steepest slope; its error is in units of that
        sizes = case.score.curve.steepest * summed.size + 1.0
        self.score = Known((self.weight * self.act.value).sum(-1), (self.weight.abs() * sizes).sum(-1))

    def backward(self, truth: Truth, grad: Known) -> None:
        """Adds to the gradients of all that is compared, from that of each entry's score ``[H, E]``."""
        row, act, weight = self.row, self.act, self.weight
        exact, error = grad.value[..., None], grad.size[..., None]
        steep = error * (act.slope.abs() + act.slope_error) + exact.abs() * act.slope_error
        each = Known(exact * weight * act.slope, weight.abs() * steep)
        for name in ("query", "key"):
            row._add_to_input(truth, name, each)
        row._add_to_tables(truth, "key", each)
        row._add_to_edges(truth, "edge_key", each)
        own = Known(exact * act.value, error * (act.value.abs() + act.error) + exact.abs() * act.error)
        for place, mine in zip((truth.values, truth.bounds), own, strict=True):
            _add_to_shared(place["grad", "weight"], mine.sum(1))


def _places(pairs: list[tuple[int, int]]) -> Tensor:
    """``[2, n]`` of n pairs of numbers."""
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


def _apply(maps: Tensor, x: Tensor) -> Tensor:
    """Maps ``[H, E, D, D]`` of vectors ``[H, E or 1, D]``."""
    return (maps @ x[..., None]).squeeze(-1)


def _outer(grad: Known, x: Tensor) -> Known:
    """The gradient of a map of x, from that of what it gave: ``[H, E, D, D]``."""
    return Known(grad.value[..., None] * x[..., None, :], grad.size[..., None] * x[..., None, :].abs())


def _add_to_shared(whole: Tensor, mine: Tensor) -> None:
    """Adds ``[H, ...]`` to a leaf of each head, or to one that all heads share."""
    whole += mine if whole.dim() == mine.dim() else mine.sum(0)
