"""Training with Lightning
========================

Lightning trains on several processes, and layers of relgraph need nothing special for it.

`Lightning <https://lightning.ai/docs/pytorch/stable/>`_ writes the training loop, and splits each batch over as many
processes as there are. Layers of relgraph are modules like any other: nothing here is special to them. Labels come from
the labeler inside the layer, so they need no place in the batch.

.. code-block:: sh

    pip install -c constraints.txt -e '.[frameworks]'
    python examples/with_lightning.py                               # one process
    torchrun --nproc-per-node 2 examples/with_lightning.py          # two, each with half of each batch

The second command printed (2026-11, AMD EPYC):

.. code-block:: text

    processes: 2
    loss: 2.762 in the first step, 0.003 in the last
    largest relative difference from a plain loop on one process: 7e-07

The build of this page does not run the script, because it needs several processes; a test runs it on two.
"""

from __future__ import annotations

import os

import lightning
import torch
from made_up_texts import BATCH, LEARNING_RATE, Copier, copying_loss, made_up_texts, report
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

# %%
# The model
# ---------
# A ``LightningModule`` holds the model and defines the loss of a batch and the optimizer. Processes have equal shares
# of a batch, so the loss of the batch is the mean of their losses.


class Training(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = Copier(), []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        (texts,) = batch
        loss = copying_loss(self.model(texts), texts)
        self.losses.append(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean").item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), LEARNING_RATE)


# %%
# Training
# --------
# ``torchrun`` says how many processes there are, and Lightning averages gradients by DistributedDataParallel. By
# default Lightning also splits the data, in a random order. Our own sampler keeps the order, so that we can compare
# with a plain loop.

if __name__ == "__main__":
    processes, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    lightning.seed_everything(0, verbose=False)
    training, texts = Training(), made_up_texts()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto", max_epochs=1, logger=False,
        use_distributed_sampler=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    mine = DistributedSampler(texts, processes, rank, shuffle=False)
    trainer.fit(training, DataLoader(texts, BATCH // processes, sampler=mine))
    if trainer.is_global_zero:
        report(training.losses, processes)
