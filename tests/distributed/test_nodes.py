"""A graph whose nodes are split over processes: outputs, losses and gradients are those of one process."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")
if not torch.distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.nodes_world import all_cases
from tests.distributed.worlds import run_world


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_split_graph_gives_what_one_process_gives(size, tmp_path):
    wrong = {name: texts for name, texts in run_world(size, tmp_path, all_cases).items() if texts != [None] * size}
    assert not wrong, "\n".join(
        f"{name}, process {rank}: {text}" for name, texts in wrong.items() for rank, text in enumerate(texts)
    )
