"""Tests the example on relational tables: the answer follows from keys and days, and the sample holds what it takes."""

import pytest

pytest.importorskip("pandas")

import relational_tables as example
import torch
from relational_tables import KINDS, OURS, VARIANTS, Batch, Reader

TABLES = example.make_tables(30, "a test")
DATABASE = example.database_of(TABLES)


def test_the_answer_follows_from_keys_and_days():
    contracts, visits = TABLES["contracts"], TABLES["visits"]
    for contract, (signed, need) in enumerate(zip(contracts.signed, contracts.need, strict=True)):
        own = visits[visits.contract == contract]
        assert set(own[own.day > signed].skill) == {need}
        assert need not in set(own[own.day < signed].skill) and len(own[own.day < signed]) > 0


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
    model = Reader(VARIANTS[name], DATABASE)
    samples = [example.sample_of(DATABASE, contract) for contract in (3, 4)]
    batch = Batch.make(samples, [0, 1], seed=7)
    assert batch.asked.tolist() == [1, 1 + len(samples[0].cells)]
    first = Batch.make(samples[:1], [0], seed=7)
    torch.testing.assert_close(model(batch)[:1], model(first))


def test_databases_agree_on_codes():
    other = example.database_of(example.make_tables(30, "another"))
    assert (other.columns, other.num_codes) == (DATABASE.columns, DATABASE.num_codes)
    assert OURS in VARIANTS
