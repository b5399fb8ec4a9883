"""Texts of random symbols, a small model that learns to copy from them, and the plain loop that trains it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import relgraph as rg

SYMBOLS, LENGTH, BATCH, STEPS, LEARNING_RATE = 12, 16, 16, 60, 1e-2
BACK = 2
"""The model names the symbol this many places before each place."""


class Copier(nn.Module):
    """Names, at each place of a text, the symbol ``BACK`` places before it."""

    def __init__(self) -> None:
        super().__init__()
        layer = rg.RelationEncoderLayer(32, 4, 64, dropout=0.0, labeler=rg.ClippedDistance(3))
        self.embedding, self.last = nn.Embedding(SYMBOLS, 32), nn.Linear(32, SYMBOLS)
        self.encoder = rg.RelationEncoder(layer, 2)

    def forward(self, texts: Tensor) -> Tensor:
        """Scores of all symbols, ``[B, N, SYMBOLS]``, for texts ``[B, N]``."""
        return self.last(self.encoder(self.embedding(texts)))


def copying_loss(scores: Tensor, texts: Tensor) -> Tensor:
    """Mean cross-entropy at all places with a symbol ``BACK`` places before them."""
    return cross_entropy(scores[:, BACK:].flatten(0, 1), texts[:, :-BACK].flatten())


def made_up_texts() -> TensorDataset:
    """Texts for all steps, ``BATCH`` per step."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randint(SYMBOLS, (STEPS * BATCH, LENGTH), generator=generator))


def losses_of_a_plain_loop() -> list[float]:
    """The loss of each step when one process trains on whole batches."""
    torch.manual_seed(0)
    model = Copier()
    optimizer, found = torch.optim.Adam(model.parameters(), LEARNING_RATE), []
    for texts in made_up_texts().tensors[0].split(BATCH):
        loss = copying_loss(model(texts), texts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def report(losses: list[float], processes: int) -> None:
    """Print the losses, and how far they are from those of the plain loop."""
    plain = losses_of_a_plain_loop()
    off = max(abs(a - b) / b for a, b in zip(losses, plain, strict=True))
    print(f"processes: {processes}")
    print(f"loss: {losses[0]:.3f} in the first step, {losses[-1]:.3f} in the last")
    print(f"largest relative difference from a plain loop on one process: {off:.0e}")
