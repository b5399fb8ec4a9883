"""A colour for each label: a scale for distances, distinct colours for a few labels, one colour map for many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_hex, to_rgba
from matplotlib.patches import Patch

from relgraph.plot import _style
from relgraph.plot._names import AS_IS, INVERSE, Naming

FEW = 12
LEGEND_LINE = 13.0  # points from one entry of a legend to the next
HALFWAY = 1.5  # the distance whose colour is halfway from that of 0 to the end of the scale

_of_figure: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""The colours that names have on a figure."""


@dataclass(frozen=True)
class LabelColours:
    """The colour of every label, and how a picture explains them."""

    naming: Naming
    colours: _style.Colours  # [R, 4]
    swatches: tuple[int, ...]  # ids that a legend names one by one
    scale: tuple[int, ...]  # ids that a colour bar shows, in its order
    by_name: dict[str, str]  # of the figure

    def explain(self, ax: Axes, more: Sequence[Any] = ()) -> None:
        """A legend next to the Axes with ``more`` entries at its end, and below it a colour bar if there is one."""
        _of_figure[ax.figure.figure] = self.by_name
        texts = self.naming.texts
        handles: list[Any] = [Patch(facecolor=self.colours[label], label=texts[label]) for label in self.swatches]
        handles += list(more)
        height = _style.room(ax)[1]
        columns = 1 + int(len(handles) * LEGEND_LINE > (0.6 if self.scale else 1.15) * height)
        if handles:
            _style.legend_beside(ax, handles, columns)
        if self.scale:
            lines = -(-len(handles) // columns)
            self._bar(ax, max(1.0 - (lines * LEGEND_LINE + 10) / height, 0.4) if handles else 1.0)

    def _bar(self, ax: Axes, top: float) -> None:
        """The colours of ``scale``, with as many names as there is room for."""
        count = len(self.scale)
        norm = BoundaryNorm(np.arange(count + 1) - 0.5, count)
        bar = _style.colour_bar(ax, ScalarMappable(norm, ListedColormap(self.colours[list(self.scale)])), "", top)
        height = top * _style.room(ax)[1]
        size = _style.SMALL if self.scale != self.naming.distances and count * 9 > height >= count * 6 else 7.0
        most = 9 if self.naming.integers is not None else int(height / (1.3 * size))
        centre = self.naming.centre if self.scale == self.naming.distances else 0
        every = max(-(-count // max(most, 1)), 1)
        at = [place for place in range(count) if (place - centre) % every == 0]
        texts = self.naming.texts
        bar.set_ticks(at, labels=[texts[self.scale[place]] for place in at], fontsize=size, **AS_IS)
        bar.minorticks_off()


def label_colours(naming: Naming, present: Iterable[int], ax: Any) -> LabelColours:
    """Colours for the labels that are ``present``; a name keeps the colour that it has on the figure of ``ax``."""
    by_name = _of_figure.get(ax.figure.figure, {}) if isinstance(ax, Axes) else {}
    shown, colours = set(present), np.zeros((len(naming.names), 4))
    rest = tuple(label for label in naming.rest if label in shown)
    near = tuple(label for label in naming.distances if label in shown)
    swatches, scale = rest, naming.distances
    if naming.distances:
        # blue below distance 0, pale yellow at it, red above; a distance has one colour, however far others are
        rank = np.arange(len(naming.distances)) - naming.centre
        colours[list(naming.distances)] = colormaps[_style.DISTANCES](0.5 + 0.47 * rank / (abs(rank) + HALFWAY))
        if len(shown) <= FEW:
            swatches, scale = near + rest, ()
    bases = list(dict.fromkeys(naming.base(label) for label in rest))
    if len(bases) > FEW:
        if not naming.distances:
            swatches, scale = (), rest
        for label, colour in zip(rest, _style.sampled(_style.MANY, len(rest)), strict=True):
            colours[label] = to_rgba(by_name.setdefault(naming.names[label], to_hex(colour)))
        return LabelColours(naming, colours, swatches, scale, by_name)
    new = [base for base in bases if base not in by_name]
    free = [colour for colour in _style.LABELS if colour not in by_name.values()]
    if len(free) < len(new):
        free = list(map(to_hex, _style.sampled(_style.MANY, len(new))))
    by_name |= dict(zip(new, free, strict=False))
    for label in rest:  # an inverse is a lighter shade of the name that it inverts
        colour = np.array(to_rgba(by_name[naming.base(label)]))
        colours[label] = _style.lighter(colour) if naming.names[label].endswith(INVERSE) else colour
    return LabelColours(naming, colours, swatches, scale, by_name)
