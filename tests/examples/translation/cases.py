"""For the tests of the translation example: a small language to translate, and readers for the files of a run."""

import csv
import random
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
WORDS = {
    "ein": "a",
    "rot": "red",
    "blau": "blue",
    "hund": "dog",
    "katze": "cat",
    "haus": "house",
    "sieht": "sees",
    "mag": "likes",
    "alt": "old",
    "neu": "new",
    "ball": "ball",
    "kind": "child",
}
TINY = {"width": 16, "heads": 2, "layers": 1, "hidden": 32}
BATCH = {"batch_tokens": 128}
# a log line every 4 steps, so that runs interrupted after 10 or 25 steps are between two lines
FINISHED = {"steps": 30, "log_every": 4, "validate_every": 10, "save_every": 5, "keep": 3, "warm_up": 10}


def write_corpus(path, pairs=400):
    """Different sentences of 2 to 7 words, each with the translations of its words in the same order."""
    draws = random.Random(0)
    sentences = {}
    while len(sentences) < pairs:
        words = draws.choices(list(WORDS), k=draws.randint(2, 7))
        sentences[" ".join(words)] = " ".join(WORDS[word] for word in words)
    path.write_text("".join(f"{source}\t{target}\n" for source, target in sentences.items()), encoding="utf-8")
    return path


def options(**values):
    """The options of ``train``: the sizes of a tiny model, short translations, and those given."""
    given = {**TINY, **BATCH, "extra": 3, **values}.items()
    return [str(part) for name, value in given for part in (f"--{name.replace('_', '-')}", value)]


def metrics(run):
    """The rows of a run's log."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def curve(run):
    """The rows of a run's log without times."""
    return [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in metrics(run)]


def losses(run, split="train", name="nll"):
    """A column of the log."""
    return torch.tensor([float(row[name]) for row in metrics(run) if row["split"] == split], dtype=torch.float64)


def latest(run):
    """The state from which a run continues."""
    return torch.load(run / "latest.pt", weights_only=True)


def assert_same_end(run, other):
    """Check that two runs wrote bitwise the same log, weights and moments, and that no unfinished file is left."""
    assert curve(run) == curve(other)
    for name in ("model", "optimizer"):
        torch.testing.assert_close(latest(run)[name], latest(other)[name], rtol=0, atol=0)
    assert not list(run.rglob("*.partial"))


def train(data, run, *flags, **values):
    """Train, and return the exit status."""
    from examples.translation import cli  # imported late: tests first check for its packages

    return cli.main(["train", str(data), str(run), *flags, *options(**values)])


def build(data, run, **values):
    """A tiny training run that has not started; options that are not settings of the model belong to the training."""
    from examples.translation import processes, training
    from examples.translation.settings import ModelSettings, TrainingSettings

    alone = processes.Processes(0, 1, torch.device("cpu"))
    model = {name: values.pop(name) for name in list(values) if name in ModelSettings.__dataclass_fields__}
    settings = TrainingSettings(**{**BATCH, "precision": "float32", **values})
    return training.Training(data, run, ModelSettings(**{**TINY, **model}), settings, alone)
