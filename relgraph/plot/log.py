"""Attention by label in the logs of a training run, such as those of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from torch import Tensor

from relgraph.arguments import check
from relgraph.functional.attention import AttentionAux
from relgraph.plot._mass import read_masses
from relgraph.plot._names import names_of_part, naming, strings
from relgraph.plot.overview import label_mass_overview


def log_label_mass(
    writer: Any,
    record: Mapping[str, list[AttentionAux]],
    step: int,
    names: Sequence[Any] | None = None,
    *,
    tag: str = "label_mass",
    labels: Sequence[Any] | None = None,
    part: int | None = None,
    padding: Tensor | Sequence[Tensor] | None = None,
    figure: bool = False,
) -> None:
    """Write the share of attention that each label receives, by layer and head, to a log.

    A scalar's tag is ``label_mass/LAYER/head H/LABEL``. A model of 12 layers and heads with 33 labels has 4752 scalars:
    choose ``labels``, or write them every few hundred steps.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or any object that has its ``add_scalar(tag, value, step)``
            and, for ``figure``, its ``add_figure(tag, figure, step)``.
        record: the dict of :func:`~relgraph.record_attention`.
        step: the number of the training step.
        names: as in :func:`~relgraph.plot.label_mass`.
        tag: what tags begin with.
        labels: names of the labels whose scalars are written, by default all.
        part: as in :func:`~relgraph.plot.label_mass`.
        padding: likewise.
        figure: whether to also write :func:`~relgraph.plot.label_mass_overview`, under ``tag`` itself.

    Raises:
        TypeError: an argument of the wrong kind, such as a writer that cannot write scalars or figures.
        ValueError: a step below 0, labels that are not among the names, names that are equal, or what
            :func:`~relgraph.plot.label_mass` refuses.

    Example:
        >>> class Printer:                                  # with TensorBoard: writer = SummaryWriter("runs")
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag, f"{value:.2f}")
        >>> labeler = rg.ClippedDistance(1)
        >>> model = rg.RelationEncoderLayer(8, 2, 16, labeler=labeler)
        >>> _ = torch.nn.init.zeros_(model.self_attn.in_proj_weight)                  # so that all scores are equal
        >>> with torch.no_grad(), rg.record_attention(model) as record:
        ...     z = model(torch.randn(1, 4, 8))
        >>> rg.plot.log_label_mass(Printer(), record, 100, labeler.names, labels=["0"])
        100 label_mass/self_attn/head 0/0 0.25
        100 label_mass/self_attn/head 1/0 0.25
    """
    for method in ["add_scalar"] + ["add_figure"] * check.boolean("figure", figure):
        if not callable(getattr(writer, method, None)):
            got = type(writer).__name__
            raise TypeError(f"writer must be an object with {method}, such as a SummaryWriter, got {got}")
    check.integer("step", step, minimum=0)
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a string, got {type(tag).__name__}")
    if not isinstance(record, Mapping):
        raise TypeError(f"record must be the dict of record_attention, got {type(record).__name__}")
    layers = read_masses("record", record, None, part, padding=padding)
    count = next(iter(layers.values())).shape[-1]
    known = naming(names if part is None else names_of_part(names, part), count).names
    if len(set(known)) < count:
        raise ValueError("names must differ, as tags do, got equal ones")
    chosen = known if labels is None else strings("labels", labels)
    if unknown := [name for name in chosen if name not in known]:
        more = ": pass labeler.names" if names is None else ""
        raise ValueError(f"labels must be among the names of labels, got {unknown[0]!r}{more}")
    for layer, heads in layers.items():
        for head, label in np.ndindex(len(heads), len(chosen)):
            parts = (tag, layer, f"head {head}", chosen[label])
            value = float(heads[head, known.index(chosen[label])])
            writer.add_scalar("/".join(filter(None, parts)), value, step)
    if figure:
        drawn = label_mass_overview(record, names, part=part, padding=padding).figure
        writer.add_figure(tag, drawn, step)
        plt.close(drawn)  # pyright: ignore[reportArgumentType]
