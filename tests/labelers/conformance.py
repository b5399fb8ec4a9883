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

    def test_is_a_value(self, case):
        again = eval(repr(case.labeler), dict(NAMES))
        assert type(again) is type(case.labeler)
        assert repr(again) == repr(case.labeler)
        for same in (again, pickle.loads(pickle.dumps(case.labeler)), copy.copy(again), copy.deepcopy(again)):
            assert same == case.labeler
            assert hash(same) == hash(case.labeler)
        assert again(*case.args, **case.kwargs) == case.labels() == case.labels()
        with pytest.raises(AttributeError, match="cannot assign"):
            case.labeler.anything = 1
        for other in self.cases:
            assert (other.labeler == case.labeler) == (repr(other.labeler) == repr(case.labeler))

    def test_has_a_different_name_for_every_label(self, case):
        sizes, names = per_part(case.labeler.num_labels), per_part(case.labeler.names)
        for size, named in zip(sizes, names, strict=True):
            assert isinstance(named, tuple)
            assert all(isinstance(name, str) for name in named)
            assert len(set(named)) == len(named) == size

    def test_labels_and_their_slices(self, case):
        labels = case.labels()
        assert labels.num_labels == case.labeler.num_labels
        for part in parts(labels):
            ids, attend = part.to_dense()
            assert ids.dtype == torch.int64
            assert ids.shape == attend.shape == (part.batch_size, labels.q_len, labels.k_len)
            assert bool(((ids >= -1) & (ids < part.num_labels)).all())
        for start, stop in ((0, labels.q_len // 2), (labels.q_len // 3, labels.q_len)):
            for whole, some in zip(parts(labels), parts(labels[start:stop]), strict=True):
                for expected, got in zip(whole.to_dense(), some.to_dense(), strict=True):
                    torch.testing.assert_close(got, expected[:, start:stop])

    def test_written_out_and_counted(self, case):
        dense, counts = case.labeler.dense(), case.labeler.describe(*case.args, **case.kwargs)
        assert (dense.num_labels, dense.names) == (case.labeler.num_labels, case.labeler.names)
        each = counts.parts if isinstance(counts, SumCounts) else (counts,)
        all_parts = parts(case.labels()), parts(dense(*case.args, **case.kwargs)), each, per_part(case.labeler.names)
        for part, written, one, names in zip(*all_parts, strict=True):
            assert type(written).__name__ == "DenseLabels"
            ids, attend = part.to_dense()
            for expected, got in zip((ids, attend), written.to_dense(), strict=True):
                torch.testing.assert_close(got, expected)
            carried = torch.bincount(ids[attend] + 1, minlength=part.num_labels + 1).tolist()
            assert one.counts == dict(zip(names, carried[1:], strict=True))
            assert one.unlabeled == carried[0]
            assert one.pairs - one.not_attending == int(attend.sum())
