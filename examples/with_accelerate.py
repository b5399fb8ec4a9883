"""Training with Accelerate
=========================

Accelerate splits batches over processes, and layers of relgraph need nothing special for it.

The model names, at each place of a text, the symbol two places before it. Its labeler is in the layer, so labels need
no place in the batch.
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import relgraph as rg

SYMBOLS, BACK = 12, 2

set_seed(0)
labeler = rg.ClippedDistance(3)
layer = rg.RelationEncoderLayer(32, 4, 64, dropout=0.0, labeler=labeler)
model = nn.Sequential(nn.Embedding(SYMBOLS, 32), rg.RelationEncoder(layer, 2), nn.Linear(32, SYMBOLS))
texts = torch.randint(SYMBOLS, (960, 16))

# %%
# `Accelerate <https://huggingface.co/docs/accelerate>`_ wraps the model in DistributedDataParallel. With
# ``split_batches`` it gives each process its share of each batch; without, each process would get its own batches.

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(texts, 16))

# %%
# The loop differs from a plain one in two points: Accelerate runs backward, and the loss of a batch is the mean over
# its shares.

losses = []
for batch in loader:
    loss = cross_entropy(model(batch)[:, BACK:].flatten(0, 1), batch[:, :-BACK].flatten())
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    # Keep the tensor: with .item(), a process once aborted at exit.
    losses.append(accelerator.reduce(loss.detach(), "mean"))

accelerator.print(f"processes: {accelerator.num_processes}")
accelerator.print(f"loss: {losses[0]:.6f} in the first step, {losses[-1]:.6f} in the last")
accelerator.end_training()

# %%
# The build of this page does not run it, because it needs several processes. As a script:
#
# .. code-block:: sh
#
#     pip install -c constraints.txt -e '.[frameworks]'
#     python examples/with_accelerate.py                              # one process
#     torchrun --nproc-per-node 2 examples/with_accelerate.py         # two, each with half of each batch
#
# ``accelerate launch --cpu --num_processes 2`` also starts two. Two printed this (2026-11, AMD EPYC), and one
# the same losses:
#
# .. code-block:: text
#
#     processes: 2
#     loss: 2.563365 in the first step, 0.003447 in the last
