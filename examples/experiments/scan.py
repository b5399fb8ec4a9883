"""SCAN: six kinds of positions translate commands to actions, and are asked for more actions than training had.

This is no page of the gallery.

SCAN (Lake and Baroni 2018) has 20,910 commands of up to nine words, and the actions that they mean:

.. code-block:: text

    jump twice after turn around left
    LTURN LTURN LTURN LTURN JUMP JUMP

A split *by length* trains on commands of up to 22, 26 or 30 actions and asks for all longer ones, up to 48 (Csordás,
Irie and Schmidhuber 2021); here it is 26.

All rows are one encoder-decoder of Csordás et al.'s size, three and three layers of width 128, and differ in how
positions reach it:

- ``sinusoidal``: sinusoids, added to the inputs;
- ``sinusoidal, shifted``: with a random shift per sequence in training (SHAPE, Kiyono et al. 2021);
- ``rotary``: queries and keys of self-attention turn (Su et al. 2021);
- ``ALiBi``: a fixed bias by distance (Press et al. 2022);
- ``relative``: tables for distances -16 to 16 (Shaw et al. 2018);
- ``relative, one layer``: the same layer three times, as in a universal Transformer.

A command counts as right if all its actions are, and the end, which the model must find itself. docs/paper.md has the
figures. With its random shift the second row had not learned the task in these steps.

.. code-block:: sh

    python examples/run.py scan                 # three seeds, five hours of two CPU cores
    python examples/run.py scan --quick         # two rows, one seed, up to eight actions, half a minute

The commands are made here from SCAN's grammar, so no file is needed; they equal the published ones. The command writes
``results.json`` and models to ``scan-out/26/``. After Ctrl-C the same command continues within a run. Runs that are
done already are in ``examples/kept/partial/scan-26.json``: copy it to ``scan-out/26/results.json`` to leave them out.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from example_options import Options
from example_runs import by_row, by_seed, cores, leads, percent, train_on
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import relgraph as rg
from experiments import Experiment, Work

# A verb may have a direction; ``opposite`` turns twice, ``around`` repeats turn and verb four times.

VERBS = ("walk", "look", "run", "jump")
Command = tuple[tuple[str, ...], tuple[str, ...]]  # words, actions


def commands() -> list[Command]:
    """All commands of SCAN with their actions, in a fixed order."""
    phrases: list[Command] = [((verb,), (verb.upper(),)) for verb in VERBS]
    for verb, side in product((*VERBS, "turn"), ("left", "right")):
        turn, act = (f"{side[0].upper()}TURN",), () if verb == "turn" else (verb.upper(),)
        phrases.append(((verb, side), turn + act))
        phrases.append(((verb, "opposite", side), turn * 2 + act))
        phrases.append(((verb, "around", side), (turn + act) * 4))
    counted = [
        (words + count, actions * times)
        for words, actions in phrases
        for count, times in (((), 1), (("twice",), 2), (("thrice",), 3))
    ]
    pairs = [
        (first[0] + (joint,) + second[0], first[1] + second[1] if joint == "and" else second[1] + first[1])
        for first, joint, second in product(counted, ("and", "after"), counted)
    ]
    return counted + pairs


@dataclass(frozen=True)
class Split:
    """Commands to train on, and those to ask for: of the same lengths, and longer ones."""

    train: list[Command]
    same: list[Command]
    other: list[Command]

    @classmethod
    def after(cls, longest: int) -> Split:
        """The split after so many actions."""
        known, other = [], []
        for command in commands():
            (other if len(command[1]) > longest else known).append(command)
        random.Random(1234).shuffle(known)
        tenth = len(known) // 10
        return cls(known[tenth:], known[:tenth], other)


WORDS = (*VERBS, "turn", "left", "right", "opposite", "around", "twice", "thrice", "and", "after")
ACTIONS = (*(verb.upper() for verb in VERBS), "LTURN", "RTURN")
PAD, END = 0, 1  # in both vocabularies; a target begins with END
WORD = {word: number for number, word in enumerate(WORDS, 2)}
ACTION = {action: number for number, action in enumerate(ACTIONS, 2)}


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids, ``[B, N]``, padded on the right."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def tensors(batch: Sequence[Command]) -> tuple[Tensor, Tensor, Tensor]:
    """Words with their end, actions after a start, and actions with their end."""
    words = padded([[*(WORD[word] for word in words), END] for words, _ in batch])
    actions = [[ACTION[action] for action in actions] for _, actions in batch]
    return words, padded([[END, *row] for row in actions]), padded([[*row, END] for row in actions])


# The rows differ in ``options`` of the self-attention and in absolute positions.

WIDTH, HEADS, HIDDEN, LAYERS, DROPOUT = 128, 8, 256, 3, 0.1
RELATIVE = {"labeler": rg.ClippedDistance(16)}
FAR = rg.ClippedDistance(64)  # farther than any two tokens here


def _shifted() -> nn.Module:
    return rg.SinusoidalPositions(WIDTH, sampler=rg.nn.ShiftedPositions(64))


ROWS: dict[str, Callable[[], tuple[dict[str, object], object]]] = {
    "sinusoidal": lambda: ({"tables": ()}, "sinusoidal"),
    "sinusoidal, shifted": lambda: ({"tables": ()}, (_shifted(), _shifted())),
    "rotary": lambda: ({"rotary": rg.RotaryPositions(WIDTH // HEADS)}, None),
    "ALiBi": lambda: ({"labeler": FAR, "tables": rg.nn.alibi_tables(FAR, WIDTH // HEADS, HEADS)}, None),
    "relative": lambda: (RELATIVE, None),
    "relative, one layer": lambda: (RELATIVE, None),
}


class Model(nn.Module):
    """An encoder-decoder from words to scores of actions."""

    def __init__(self, row: str) -> None:
        super().__init__()

        def attention(options: Mapping[str, object]) -> rg.RelationAttention:
            return rg.RelationAttention(WIDTH, HEADS, DROPOUT, **options)

        (options, positions), (again, _) = ROWS[row](), ROWS[row]()
        sizes = (WIDTH, HEADS, HIDDEN, DROPOUT)
        encoder = rg.RelationEncoderLayer(*sizes, attention=attention(options))
        decoder = rg.RelationDecoderLayer(*sizes, self_attention=attention(again))
        self.words, self.actions = (nn.Embedding(2 + len(names), WIDTH, PAD) for names in (WORDS, ACTIONS))
        self.transformer = rg.RelationTransformer(
            WIDTH, HEADS, dropout=DROPOUT, positions=positions,
            custom_encoder=rg.RelationEncoder(encoder, LAYERS), custom_decoder=rg.RelationDecoder(decoder, LAYERS),
        )  # fmt: skip
        self.transformer.reset_parameters()
        if row.endswith("one layer"):
            for stack in (self.transformer.encoder, self.transformer.decoder):
                stack.layers = nn.ModuleList([stack.layers[0]] * LAYERS)
        self.out = nn.Linear(WIDTH, 2 + len(ACTIONS))

    def forward(self, words: Tensor, given: Tensor) -> Tensor:
        """Scores of the action after each of ``given``, ``[B, N, 8]``."""
        hidden = words == PAD
        masks = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
        return self.out(self.transformer(self.words(words), self.actions(given), **masks))


# A batch has 64 commands of similar length. A search that takes the likeliest action finds the right actions exactly if
# each of them is the likeliest one after those before it; so one call per batch tests all actions at once.

BATCH, RATE = 64, 1e-3


def loss_of(model: Model, train: Sequence[Command], seed: int) -> Callable[[int], Tensor]:
    """The loss of a step by its number: eight batches are drawn together, and sorted by their numbers of actions."""

    def loss(step: int) -> Tensor:
        draw = random.Random(f"{seed}-{step // 8}")
        drawn = sorted((draw.choice(train) for _ in range(8 * BATCH)), key=lambda command: len(command[1]))
        order = draw.sample(range(8), 8)
        words, given, wanted = tensors(drawn[order[step % 8] * BATCH :][:BATCH])
        return cross_entropy(model(words, given).flatten(0, 1), wanted.flatten(), ignore_index=PAD)

    return loss


@torch.inference_mode()
def verdicts(model: Model, asked: Sequence[Command]) -> list[str]:
    """Of each command: right, early (right up to an end that comes too early) or wrong."""
    model.eval()
    order, found = sorted(range(len(asked)), key=lambda place: len(asked[place][1])), {}
    for start in range(0, len(order), 256):
        places = order[start : start + 256]
        words, given, wanted = tensors([asked[place] for place in places])
        answer = model(words, given).argmax(-1)
        wrong = (answer != wanted) & (wanted != PAD)
        first = answer.gather(1, wrong.int().argmax(1, keepdim=True))[:, 0]  # of those that are wrong
        for place, is_wrong, action in zip(places, wrong.any(1).tolist(), first.tolist(), strict=True):
            found[place] = "right" if not is_wrong else "early" if action == END else "wrong"
    return [found[place] for place in range(len(asked))]


@dataclass
class Run:
    """One training run: shares of right commands, and those of the other kind by their number of actions.

    ``early`` is the share of the other kind that is right up to an end that comes too early; None if not counted.
    """

    variant: str
    seed: int
    same: float
    other: float
    by_length: dict[str, float]
    parameters: int
    seconds: float
    early: float | None = None


def run(name: str, seed: int, split: Split, steps: int, folder: Path) -> tuple[Run, Model]:
    """Train a row with a seed, or continue its training, and test it."""
    torch.manual_seed(seed)
    model = Model(name)
    seconds = train_on(folder, name, seed, model, loss_of(model, split.train, seed), steps, RATE)
    other, same = verdicts(model, split.other), verdicts(model, split.same)
    lengths: dict[int, list[bool]] = {}
    for (_, actions), verdict in zip(split.other, other, strict=True):
        lengths.setdefault(len(actions), []).append(verdict == "right")
    return Run(
        name, seed, same.count("right") / len(same), other.count("right") / len(other),
        {str(n): mean(lengths[n]) for n in sorted(lengths)},
        sum(weight.numel() for weight in model.parameters()), seconds, other.count("early") / len(other),
    ), model  # fmt: skip


def report(runs: Sequence[Run]) -> str:
    """The table that the command prints, and the leads of the relative rows."""
    lines = [f"{'positions':<22}{'as trained':>16}{'other':>16}{'parameters':>12}{'CPU seconds':>13}"]
    for name, mine in by_row(runs).items():
        same, other = (percent([getattr(one, column) for one in mine]) for column in ("same", "other"))
        figures = f"{same:>16}{other:>16}{mine[0].parameters:>12,}"
        lines.append(f"{name:<22}{figures}{mean(one.seconds for one in mine):>13.0f}")
    *others, relative, one_layer = ROWS
    pairs = [*product((relative, one_layer), others), (one_layer, relative)]
    return "\n".join([*lines, *leads(by_seed(runs, "other"), pairs)])


STEPS, QUICK_STEPS, SECONDS_A_STEP = 10_000, 100, 0.13
LONGEST, QUICK_LONGEST = 26, 8


def check(_: Options, arguments: Namespace) -> None:
    arguments.longest = QUICK_LONGEST if arguments.quick else LONGEST
    arguments.out = arguments.out / str(arguments.longest)


def begin(arguments: Namespace) -> Work:
    split, steps = Split.after(arguments.longest), arguments.steps
    if arguments.quick:
        split = Split(split.train, split.same, split.other[:512])

    def one(name: str, seed: int) -> tuple[Run, Model]:
        return run(name, seed, split, steps, arguments.out)

    settings = {"split": str(arguments.longest), "steps": steps, "batch": BATCH, "rate": RATE, "dropout": DROPOUT}
    seconds = len(arguments.rows) * len(arguments.seeds) * steps * SECONDS_A_STEP
    return Work(settings, seconds, one, processes=1 if arguments.quick else cores())


EXPERIMENT = Experiment(
    Run, [*ROWS], "two rows, one seed, few steps", {"seeds": (3, 1), "steps": (STEPS, QUICK_STEPS)}, begin,
    tell=lambda run: f"{100 * run.same:.1f} % and {100 * run.other:.1f} % right", report=report,
    short_rows=("sinusoidal", "relative"), check=check,
)  # fmt: skip
