"""The tables of one attention: kinds, heads, ties, sums, banks and their states."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relgraph.labelers import ClippedDistance
from relgraph.nn import LabelTable, RelationTables

F64 = torch.float64


def shapes(tables):
    return {name: [list(x.shape) for x in t] if isinstance(t, tuple) else list(t.shape) for name, t in tables.items()}


def test_key_and_value_tables_of_different_rows_by_default():
    tables = RelationTables(5, 8)
    assert shapes(tables()) == {"key_table": [5, 8], "value_table": [5, 8]}
    assert not torch.equal(tables.key(), tables.value())
    assert tables.query is None
    assert tables.bias is None


def test_tied_rows_get_both_gradients():
    tables = RelationTables(5, 8, tied=True)
    given = tables()
    assert given["key_table"] is given["value_table"]
    assert [name for name, _ in tables.named_parameters()] == ["key.rows"]
    (given["key_table"].sum() + 2 * given["value_table"].sum()).backward()
    assert torch.equal(tables.key.rows.grad, torch.full((5, 8), 3.0))


def test_a_sum_has_one_table_a_part():
    tables = RelationTables((5, 3), 8, 2, kinds=("key", "bias"), per_head=True, frozen=(None, 0))
    assert shapes(tables()) == {"key_table": [[2, 5, 8], [2, 3, 8]], "bias_table": [[2, 5], [2, 3]]}
    assert tables.key[1]()[:, 0].abs().max() == 0
    assert tables.key[0].frozen is None


def test_names_of_every_part_are_checked_on_loading():
    labeler = ClippedDistance(2) + ClippedDistance(1)
    tables = RelationTables(labeler.num_labels, 4, names=labeler.names)
    swapped = RelationTables((5, 3), 4, names=(labeler.names[0], labeler.names[1][::-1]))
    with pytest.raises(ValueError, match="at label 0 of key.1: the state has '-1', this table '1'"):
        swapped.load_state_dict(tables.state_dict())
    fresh = RelationTables(labeler.num_labels, 4, names=labeler.names)
    fresh.load_state_dict(tables.state_dict())
    assert torch.equal(fresh.value[1](), tables.value[1]())


def test_a_sum_with_a_bank_in_one_part():
    tables = RelationTables((5, None), 4, banks=(None, {"key": nn.Linear(3, 4), "value": nn.Linear(3, 4)}))
    given = tables((None, torch.randn(7, 3)))
    assert shapes(given) == {"key_table": [[5, 4], [7, 4]], "value_table": [[5, 4], [7, 4]]}
    with pytest.raises(
        ValueError, match="features .*must be a tuple with one entry for each of the 2 parts, got Tensor"
    ):
        tables(torch.randn(7, 3))
    with pytest.raises(ValueError, match="features .*must be None for part 0, as no bank reads them, got Tensor"):
        tables((torch.randn(5, 3), torch.randn(7, 3)))
    with pytest.raises(ValueError, match="features .*must be given to a table with a bank, got None"):
        tables()


def test_repr_and_parts():
    tables = RelationTables(5, 4, tied=True)
    assert repr(tables) == ("RelationTables(\n  num_labels=5, tied=True\n  (key): LabelTable(5, 4)\n)")
    own = RelationTables((5, 2), 4, 3, kinds=("bias", "key"), per_head=True)
    assert repr(own) == (
        "RelationTables(\n  num_labels=(5, 2), kinds=('key', 'bias'), per_head=True\n"
        "  (key): TableParts(\n    (0): LabelTable(5, 4, heads=3)\n    (1): LabelTable(2, 4, heads=3)\n  )\n"
        "  (bias): TableParts(\n    (0): LabelTable(5, None, heads=3)\n    (1): LabelTable(2, None, heads=3)\n  )\n)"
    )
    assert repr(RelationTables(5, 4, 3, per_head=["value"])).split("\n")[1].endswith("per_head=('value',)")
    assert isinstance(tables.key, LabelTable)


def test_hooks_of_all_modules_see_tables():
    tables, seen = RelationTables(5, 4), []

    def double(module, _, out):
        seen.append(module)
        return out * 2 if isinstance(module, LabelTable) else None

    hook = nn.modules.module.register_module_forward_hook(double)
    try:
        doubled = tables()["key_table"]
    finally:
        hook.remove()
    assert tables.key in seen and torch.equal(doubled, 2 * tables.key.rows)
