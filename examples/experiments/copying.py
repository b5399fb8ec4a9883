"""Does position travel beyond the clip? Copy the token at a given distance: one to three layers, clips 1, 4 and 16.

With clip k, a row of the tables stands for all distances of k and more, so one layer tells apart distances up to k - 1.
Shaw et al. (2018) expect that layers carry positions farther: each layer can bring a token k - 1 places closer. Here
the answer is known. A sequence of 96 random tokens of eight kinds comes with a number m, which is added to all inputs
as a learned vector. The target at each place is the token m places before it. One model learns all m up to 48, without
any other positions. Guessing gives 12.5 %.

The test is new sequences, at least 48 places from the beginning; the share of right tokens by m. ``reach`` is the
largest m up to which all shares are at least 90 %.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import mean

import torch
from example_runs import Runs, picture, train
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work

LENGTH, KINDS, WIDTH, HEADS, FAR, BATCH, RATE = 96, 8, 64, 4, 48, 16, 3e-3
STEPS, QUICK_STEPS, TESTED, SECONDS_A_STEP, RIGHT = 3000, 100, 32, 0.015, 0.9
DEPTHS, CLIPS = (1, 2, 3), (1, 4, 16)
ROWS = {f"depth {depth}, k {clip}": (depth, clip) for clip in CLIPS for depth in DEPTHS}


class Copier(nn.Module):
    """Tokens and a distance in, the token at that distance out."""

    def __init__(self, depth: int, clip: int) -> None:
        super().__init__()
        self.token, self.distance = nn.Embedding(KINDS, WIDTH), nn.Embedding(FAR + 1, WIDTH)
        self.layers = nn.ModuleList(
            rg.RelationEncoderLayer(
                WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", norm_first=True, labeler=rg.ClippedDistance(clip)
            )
            for _ in range(depth)
        )
        self.norm, self.answer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, KINDS)

    def forward(self, tokens: Tensor, far: Tensor) -> Tensor:
        x = self.token(tokens) + self.distance(far)[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.answer(self.norm(x))


def draw(far: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens, and for each place the token ``far`` places before; -100 where there is none."""
    tokens = torch.randint(KINDS, (len(far), LENGTH), generator=generator)
    place = torch.arange(LENGTH) - far[:, None]
    return tokens, tokens.gather(1, place.clamp(min=0)).masked_fill(place < 0, -100)


def losses(model: Copier, seed: int) -> Iterator[Tensor]:
    """Yield the loss of each step, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        far = torch.randint(1, FAR + 1, (BATCH,), generator=generator)
        tokens, wanted = draw(far, generator)
        yield cross_entropy(model(tokens, far).flatten(0, 1), wanted.flatten())


@torch.no_grad()
def shares(model: Copier, count: int) -> list[float]:
    """For each distance from 1 on, the share of right tokens."""
    generator, found = torch.Generator().manual_seed(10_000), []
    for number in range(1, FAR + 1):
        far = torch.full((count,), number)
        tokens, wanted = draw(far, generator)
        found.append((model(tokens, far).argmax(-1) == wanted)[:, FAR:].double().mean().item())
    return found


@dataclass
class Run:
    """One row trained with one seed: the share of right tokens at each distance from 1 on."""

    variant: str
    seed: int
    right: list[float]
    seconds: float

    @property
    def reach(self) -> int:
        """The largest distance up to which all are copied well."""
        return len([*takewhile(lambda share: share >= RIGHT, self.right)])


def report(runs: Sequence[Run]) -> str:
    """How far each row copies, by seed, next to what k - 1 places per layer make; and the share beyond."""
    lines = [f"{'row':<16}{'depth · (k - 1)':>16}{'reach, by seed':>18}{'percent beyond':>16}{'CPU seconds':>13}"]
    for name, (depth, clip) in ROWS.items():
        mine = [run for run in runs if run.variant == name]
        if mine:
            steps = depth * (clip - 1)
            beyond = mean(share for run in mine for share in run.right[steps:])
            reach = ", ".join(str(run.reach) for run in mine)
            seconds = mean(run.seconds for run in mine)
            lines.append(f"{name:<16}{steps:>16}{reach:>18}{100 * beyond:>16.1f}{seconds:>13.0f}")
    return "\n".join(lines)


def draw_shares(runs: Runs) -> None:
    """A panel for each clip, a line for each depth (mean and range), and where k - 1 places per layer end."""
    with picture(runs.folder / "reach.png", 10, 3.4, columns=len(CLIPS)) as axes:
        for ax, clip in zip(axes, CLIPS, strict=True):
            for depth, colour in zip(DEPTHS, ("#9aa3ad", "#56b4e9", "#0072b2"), strict=True):
                mine = [run.right for run in runs.done if run.variant == f"depth {depth}, k {clip}"]
                at = [[100 * share for share in shares] for shares in zip(*mine, strict=True)]
                places = range(1, len(at) + 1)
                ax.plot(places, [mean(shares) for shares in at], color=colour, label=f"depth {depth}")
                ax.fill_between(places, [*map(min, at)], [*map(max, at)], color=colour, alpha=0.2, linewidth=0)
                ax.axvline(depth * (clip - 1), color=colour, linestyle=":")
            ax.set_title(f"k = {clip}")
            ax.set_xlabel("distance of the token")
            ax.set_ylim(0, 103)
        axes[0].set_ylabel("percent right")
        axes[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.22))


def begin(arguments: Namespace) -> Work:
    def run(name: str, seed: int) -> tuple[Run, Copier]:
        torch.manual_seed(seed)
        model = Copier(*ROWS[name])
        seconds = train(model, losses(model, seed), arguments.steps, RATE, title=f"{name}, seed {seed}")
        return Run(name, seed, shares(model, TESTED), seconds), model

    layers = sum(ROWS[name][0] for name in arguments.rows)
    seconds = len(arguments.seeds) * arguments.steps * layers * SECONDS_A_STEP
    return Work(
        {"steps": arguments.steps, "length": LENGTH, "batch": BATCH, "rate": RATE}, seconds, run, draw=draw_shares
    )


EXPERIMENT = Experiment(
    Run, [*ROWS], "two rows, one seed, few steps", {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: f"reach {run.reach}", report=report, short_rows=("depth 1, k 4", "depth 2, k 4"),
)  # fmt: skip
