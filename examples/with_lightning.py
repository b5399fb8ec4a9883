"""Training with Lightning
========================

Lightning trains on several processes, and layers of relgraph need nothing special for it.

The model names, at each place of a text, the symbol two places before it. Its labeler is in the layer, so labels need
no place in the batch.
"""

import os

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import relgraph as rg

SYMBOLS, BACK = 12, 2


def make_model():
    layer = rg.RelationEncoderLayer(32, 4, 64, dropout=0.0, labeler=rg.ClippedDistance(3))
    return nn.Sequential(nn.Embedding(SYMBOLS, 32), rg.RelationEncoder(layer, 2), nn.Linear(32, SYMBOLS))


# %%
# A module of `Lightning <https://lightning.ai/docs/pytorch/stable/>`_ holds the model, and defines the loss of a batch
# and the optimizer. Processes have equal shares of a batch, so the loss of the batch is the mean of their losses.


class Training(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.losses = make_model(), []

    def training_step(self, batch, _):
        loss = cross_entropy(self.model(batch)[:, BACK:].flatten(0, 1), batch[:, :-BACK].flatten())
        # Keep the tensor: in the same loop with Accelerate and .item(), a process once aborted at exit.
        self.losses.append(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean"))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


# %%
# ``torchrun`` says how many processes there are, and Lightning averages gradients by DistributedDataParallel. By
# default Lightning also splits the data, in a random order. Our own sampler keeps the order, so that two processes
# train like one.

processes, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
lightning.seed_everything(0, verbose=False)
training, texts = Training(), torch.randint(SYMBOLS, (960, 16))
trainer = lightning.Trainer(
    accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto", max_epochs=1, logger=False,
    use_distributed_sampler=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
mine = DistributedSampler(texts, processes, rank, shuffle=False)
trainer.fit(training, DataLoader(texts, 16 // processes, sampler=mine))
if trainer.is_global_zero:
    print(f"processes: {processes}")
    print(f"loss: {training.losses[0]:.6f} in the first step, {training.losses[-1]:.6f} in the last")

# %%
# The build of this page does not run it, because it needs several processes. As a script:
#
# .. code-block:: sh
#
#     pip install -c constraints.txt -e '.[frameworks]'
#     python examples/with_lightning.py                               # one process
#     torchrun --nproc-per-node 2 examples/with_lightning.py          # two, each with half of each batch
#
# Two processes printed this (2026-11, AMD EPYC), and one the same losses:
#
# .. code-block:: text
#
#     processes: 2
#     loss: 2.563365 in the first step, 0.003447 in the last
