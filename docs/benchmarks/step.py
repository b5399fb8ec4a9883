"""Time a training step of the encoder-decoder of Shaw et al. 2018, section 4.1 (base), with both kinds of positions.

The step has the embedding, six encoder and six decoder layers, output projection, cross-entropy, backward and an Adam
update, on random tokens. In the paper, relative positions cost 7% of the steps per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg
from docs.benchmarks.measure import Clock, Rows, in_turn, quartiles, ratio

POSITIONS = ("sinusoidal", "relative")


@dataclass(frozen=True)
class Work:
    """The inputs and sizes of a step.

    Attributes:
        tokens: about how many tokens the source and the target of a batch each have.
        length: length of every sentence.
        vocabulary: rows of the embedding that source, target and output share.
        size: d_model, 64 per head; feed-forward networks are twice as wide.
        layers: layers in the encoder, and in the decoder.
        compiled: whether to compile the models.
    """

    tokens: int
    length: int
    vocabulary: int = 32_000
    size: int = 512
    layers: int = 6
    compiled: bool = False

    @property
    def batch(self) -> int:
        """Sentences per batch."""
        return max(self.tokens // self.length, 1)


class Translator(nn.Module):
    """The model with its embedding, which is also the output projection."""

    def __init__(self, work: Work, positions: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(work.vocabulary, work.size)
        nn.init.normal_(self.embedding.weight, std=work.size**-0.5)
        self.scale = work.size**0.5
        heads, sizes = max(work.size // 64, 1), (2 * work.size, 0.1)
        labeler = rg.ClippedDistance(16) if positions == "relative" else None
        options: dict[str, Any] = {"tables": ()}
        if labeler is not None:
            tables = rg.RelationTables(labeler, work.size // heads, heads, per_head=True, shared=False)
            options = {"labeler": labeler, "tables": tables}
        encoder = rg.RelationEncoderLayer(work.size, heads, *sizes, **options)
        decoder = rg.RelationDecoderLayer(work.size, heads, *sizes, **options)
        self.model = rg.RelationTransformer(
            work.size, heads, positions="sinusoidal" if positions == "sinusoidal" else None,
            custom_encoder=rg.RelationEncoder(encoder, work.layers, nn.LayerNorm(work.size)),
            custom_decoder=rg.RelationDecoder(decoder, work.layers, nn.LayerNorm(work.size)),
        )  # fmt: skip

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits ``[B, N, vocabulary]``."""
        out = self.model(self.embedding(source) * self.scale, self.embedding(target) * self.scale)
        return out @ self.embedding.weight.T


class Step:
    """A training step, which runs each time it is called."""

    def __init__(self, work: Work, positions: str, device: str) -> None:
        torch.manual_seed(0)
        self.device = torch.device(device).type
        self.model = Translator(work, positions).to(device).train()
        self.forward = torch.compile(self.model) if work.compiled else self.model
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.source, self.target = torch.randint(work.vocabulary, (2, work.batch, work.length + 1), device=device)

    def __call__(self) -> None:
        """Forward (on a GPU in bfloat16), backward and update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            logits = self.forward(self.source[:, 1:], self.target[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), self.target[:, 1:].flatten(), label_smoothing=0.1)
        loss.backward()
        self.optimizer.step()


def measure(work: Work, rounds: int, device: str) -> Rows:
    """A row for each kind of positions: milliseconds, ratio to sinusoidal within a round, tokens per second."""
    clock, steps = Clock(device), {positions: Step(work, positions, device) for positions in POSITIONS}
    taken = in_turn({name: lambda step=step: clock.time(step)[1] for name, step in steps.items()}, rounds, uncounted=2)
    rows = []
    for positions, times in taken.items():
        ms = quartiles(times)[1]
        rows.append({
            "positions": positions, "sentences × length": f"{work.batch} × {work.length}", "step ms": round(ms, 1),
            "×": ratio(times, taken[POSITIONS[0]], 3), "tokens / s": round(work.batch * work.length / ms * 1e3),
        })  # fmt: skip
    return rows
