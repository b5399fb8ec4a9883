"""Relations of pretrained models on several processes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="relations are for models of transformers")

from tests.distributed.relations_world import cases
from tests.distributed.worlds import run_world


def test_relations_are_sharded_with_the_model(tmp_path):
    assert run_world(2, tmp_path, cases) == {"FSDP2": [None, None]}
