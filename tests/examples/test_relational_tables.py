"""Tests the example on relational tables: the answer follows from keys and days, and the sample holds what it takes."""

import pytest

pytest.importorskip("pandas")

import relational_tables as example
import torch
from experiments.relational_tables import NAME, VARIANTS, Batch
from relational_tables import KINDS, Reader

TABLES = example.make_tables(30, "a test")
DATABASE = example.database_of(TABLES)


def test_the_answer_follows_from_keys_and_days():
    contracts, visits = TABLES["contracts"], TABLES["visits"]
    for contract, (signed, need) in enumerate(zip(contracts.signed, contracts.need, strict=True)):
        own = visits[visits.contract == contract]
        assert set(own[own.day > signed].skill) == {need}
        assert need not in set(own[own.day < signed].skill) and len(own[own.day < signed]) > 0


def test_the_needs_of_other_contracts_do_not_say_the_answer():
    needs = example.make_tables(3000, "a long test")["contracts"].need
    pairs = list(zip(needs[0::3], needs[1::3], needs[2::3], strict=True))
    same = sum((a == b) + (a == c) + (b == c) for a, b, c in pairs) / (3 * len(pairs))
    assert abs(same - 1 / 4) < 0.03  # as often as by chance; 3,000 pairs, a standard deviation of 0.008


def test_a_sample_holds_all_visits_and_not_the_answer():
    for contract in range(30):
        sample = example.sample_of(DATABASE, contract)
        held = {row for table, row in sample.rows if table == "visits"}
        assert held >= set(TABLES["visits"].index[TABLES["visits"].contract == contract])
        hidden = sample.kinds == KINDS.index("hidden")
        assert sample.rows[0] == ("contracts", contract) and sample.cells.rows[hidden].tolist() == [0]
        assert DATABASE.columns[sample.cells.columns[hidden].item()] == "contracts.need"
        assert sample.codes[hidden].tolist() == [0] and sample.numbers[hidden].tolist() == [0.0]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_gives_what_each_sample_gives(name):
    torch.manual_seed(0)
    row = VARIANTS[name]
    model = Reader(DATABASE, row.labeler, 2 * NAME * row.keys)
    samples = [example.sample_of(DATABASE, contract) for contract in (3, 4)]
    batch, first = (Batch.make(iter([7]), samples[:count], [0, 1][:count]) for count in (2, 1))
    torch.testing.assert_close(batch.scores(model, row)[:1], first.scores(model, row))


def test_databases_agree_on_codes():
    other = example.database_of(example.make_tables(30, "another"))
    assert (other.columns, other.num_codes) == (DATABASE.columns, DATABASE.num_codes)
