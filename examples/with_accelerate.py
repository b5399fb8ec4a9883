"""Training with Accelerate
=========================

Accelerate splits batches over processes, and layers of relgraph need nothing special for it.

`Accelerate <https://huggingface.co/docs/accelerate>`_ leaves the training loop as it is, and splits batches over as
many processes as there are. Layers of relgraph are modules like any other: nothing here is special to them. Labels come
from the labeler inside the layer, so they need no place in the batch.

.. code-block:: sh

    pip install -c constraints.txt -e '.[frameworks]'
    python examples/with_accelerate.py                              # one process
    torchrun --nproc-per-node 2 examples/with_accelerate.py         # two, each with half of each batch

``accelerate launch --cpu --num_processes 2`` also starts two. The second command printed (2026-11, AMD EPYC):

.. code-block:: text

    processes: 2
    loss: 2.762 in the first step, 0.003 in the last
    largest relative difference from a plain loop on one process: 8e-07

The build of this page does not run the script, because it needs several processes; a test runs it on two.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from made_up_texts import BATCH, LEARNING_RATE, Copier, copying_loss, made_up_texts, report
from torch.utils.data import DataLoader

# %%
# What is split
# -------------
# ``prepare`` wraps the model in DistributedDataParallel. With ``split_batches`` it makes the loader give each process
# its share of each batch; without, each process would get its own batches.

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
set_seed(0)
model = Copier()
optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
loader = DataLoader(made_up_texts(), BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

# %%
# The loop
# --------
# The loop differs from a plain one in two points: Accelerate runs backward, and the loss of a batch is the mean over
# its shares.

losses = []
for (texts,) in loader:
    loss = copying_loss(model(texts), texts)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.gather(loss.detach()).mean().item())

if accelerator.is_main_process:
    report(losses, accelerator.num_processes)
accelerator.end_training()
