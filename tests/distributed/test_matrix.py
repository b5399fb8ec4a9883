"""Every way to split work over processes, with labels of every kind, gives what one process gives.

Modes are data parallelism (DDP, FSDP2), heads (TP: HeadParallel), rows (CP: context_parallel), and two at once: heads
with FSDP2, heads with rows. Cells are kinds of labels × causal or not × packed or batched × grouped key heads or not ×
dropout or not; options change from cell to cell and from world to world. Outputs, losses and all gradients, tables
included, equal those of one process within 1e-12.

Dropout: with split heads or rows the mask is that of the whole. Under DDP and FSDP2 each process draws masks for its own
samples; a process that goes through these shares one by one, each with the seed of its process, gets the same numbers.
"""

from __future__ import annotations

import pytest
from torch import distributed

if not distributed.is_available():
    pytest.skip("torch was built without distributed", allow_module_level=True)

from tests.distributed.matrix_modes import MODES, run
from tests.distributed.worlds import run_world


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def world(request, tmp_path_factory):
    """All comparisons in a world of this size."""
    size = request.param
    return run_world(size, tmp_path_factory.mktemp("matrix"), run)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_all_processes_together_are_one(world, mode):
    of_mode = {name[1]: found for name, found in world.items() if name[0] == str(mode)}
    assert len(of_mode) >= 3
    wrong = []
    for name, found in of_mode.items():
        for rank, differences in enumerate(found):
            far = differences
            if not isinstance(differences, str):
                far = {what: off for what, off in differences.items() if not off <= 1e-12}
            if far:
                wrong.append(f"{name} on process {rank}: {far}")
    assert not wrong, f"{len(wrong)} of {len(of_mode)}\n" + "\n".join(wrong[:20])
