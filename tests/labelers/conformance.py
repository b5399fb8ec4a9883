"""A suite for every labeler, which each test module inherits with its own labelers and inputs."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch

import relgraph.labelers
from relgraph.labelers import Labeler
from relgraph.labels import Labels, SumCounts, SumLabels
from tests.docstrings import exports


def before(i, j):
    return (j < i).long() - (j > i).long()


def parity(i, j):
    return (i + j) % 2


NAMES = {name: getattr(relgraph.labelers, name) for name in exports(relgraph.labelers)}
NAMES |= {"before": before, "parity": parity}


class Case(NamedTuple):
    """A labeler and an input to call it with."""

    labeler: Labeler
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012

    def labels(self) -> Labels:
        return self.labeler(*self.args, **self.kwargs)


def parts(labels: Labels) -> tuple[Labels, ...]:
    return labels.parts if isinstance(labels, SumLabels) else (labels,)


def per_part(value):
    """Return names or sizes as one entry per part, also where there is no sum."""
    plain = isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(name, str) for name in value))
    return (value,) if plain else value


class LabelerSuite:
    """Inherit it, and list ``cases``."""

    cases: tuple[Case, ...] = ()

    def test_prints_as_the_expression_that_makes_it(self, case):
        again = eval(repr(case.labeler), dict(NAMES))
        assert type(again) is type(case.labeler)
        assert again == case.labeler
        assert hash(again) == hash(case.labeler)
        assert repr(again) == repr(case.labeler)

    def test_pickles_and_copies(self, case):
        for again in (pickle.loads(pickle.dumps(case.labeler)), copy.copy(case.labeler), copy.deepcopy(case.labeler)):
            assert again == case.labeler
            assert again(*case.args, **case.kwargs) == case.labels()

    def test_is_frozen(self, case):
        with pytest.raises(AttributeError, match="cannot assign"):
            case.labeler.anything = 1

    def test_differs_from_other_labelers(self, case):
        for other in self.cases:
            assert (other.labeler == case.labeler) == (repr(other.labeler) == repr(case.labeler))

    def test_has_a_different_name_for_every_label(self, case):
        numbers, names = per_part(case.labeler.num_labels), per_part(case.labeler.names)
        assert len(numbers) == len(names)
        for number, named in zip(numbers, names, strict=True):
            assert isinstance(named, tuple)
            assert all(isinstance(name, str) for name in named)
            assert len(set(named)) == len(named) == number

    def test_labels_agree_with_num_labels(self, case):
        labels = case.labels()
        assert labels.num_labels == case.labeler.num_labels
        for part in parts(labels):
            ids, attend = part.to_dense()
            assert ids.dtype == torch.int64
            assert ids.shape == attend.shape == (part.batch_size, labels.q_len, labels.k_len)
            assert bool(((ids >= -1) & (ids < part.num_labels)).all())

    def test_is_deterministic(self, case):
        assert case.labels() == case.labels()

    def test_row_slices_agree(self, case):
        labels = case.labels()
        for start, stop in ((0, labels.q_len), (0, labels.q_len // 2), (labels.q_len // 3, labels.q_len)):
            for whole, some in zip(parts(labels), parts(labels[start:stop]), strict=True):
                for expected, got in zip(whole.to_dense(), some.to_dense(), strict=True):
                    torch.testing.assert_close(got, expected[:, start:stop])

    def test_dense_labeler_gives_the_same_written_out(self, case):
        dense = case.labeler.dense()
        assert (dense.num_labels, dense.names) == (case.labeler.num_labels, case.labeler.names)
        for written, part in zip(parts(dense(*case.args, **case.kwargs)), parts(case.labels()), strict=True):
            assert type(written).__name__ == "DenseLabels"
            for expected, got in zip(part.to_dense(), written.to_dense(), strict=True):
                torch.testing.assert_close(got, expected)

    def test_describe_counts_the_labels_written_out(self, case):
        told = case.labeler.describe(*case.args, **case.kwargs)
        each = told.parts if isinstance(told, SumCounts) else (told,)
        for part, one, names in zip(parts(case.labels()), each, per_part(case.labeler.names), strict=True):
            ids, attend = part.to_dense()
            carried = torch.bincount(ids[attend] + 1, minlength=part.num_labels + 1).tolist()
            assert one.counts == dict(zip(names, carried[1:], strict=True))
            assert one.unlabeled == carried[0]
            assert one.pairs - one.not_attending == int(attend.sum())
