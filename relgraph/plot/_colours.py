"""A colour for each label: a scale for distances, distinct colours for a few labels, one colour map for many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch

from relgraph.plot import _style
from relgraph.plot._names import AS_IS, INVERSE, Naming

FEW = 12
LEGEND_LINE = 13.0  # points from one entry of a legend to the next


@dataclass(frozen=True)
class LabelColours:
    """The colour of every label, and how a picture explains them."""

    naming: Naming
    colours: _style.Colours  # [R, 4]
    swatches: tuple[int, ...]  # ids that a legend names one by one
    scale: tuple[int, ...]  # ids that a colour bar shows, in its order

    def explain(self, ax: Axes, more: Sequence[Any] = (), *, show_ids: bool = False) -> None:
        """A legend next to the Axes with ``more`` entries at its end, and below it a colour bar if there is one."""
        texts = self.naming.texts
        prefix = {label: f"{label}  " if show_ids and texts[label] != str(label) else "" for label in self.swatches}
        handles = [Patch(facecolor=self.colours[r], label=f"{prefix[r]}{texts[r]}") for r in self.swatches]
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


def label_colours(naming: Naming, present: Iterable[int], *, only_present: bool = False) -> LabelColours:
    """Colours for labels, only for ``present`` ones if there are many or ``only_present``."""
    count = len(naming.names)
    shown = tuple(range(count)) if count <= FEW and not only_present else tuple(sorted(set(present)))
    colours = np.zeros((count, 4))
    if naming.distances:
        # blue below distance 0, pale yellow at it, red above; both sides share one scale, by rank
        rank = np.arange(len(naming.distances)) - naming.centre
        colours[list(naming.distances)] = colormaps[_style.DISTANCES](0.5 + 0.44 * rank / max(abs(rank).max(), 1))
        rest = tuple(label for label in naming.rest if label in shown)
        _apart(colours, naming, rest, _style.BESIDE_DISTANCES)
        near = tuple(label for label in naming.distances if label in shown)
        if len(near) + len(rest) <= FEW:
            return LabelColours(naming, colours, near + rest, ())
        return LabelColours(naming, colours, rest, naming.distances)
    if len({naming.base(label) for label in shown}) <= FEW:
        _apart(colours, naming, shown, _style.PALETTE)
        return LabelColours(naming, colours, shown, ())
    colours[list(shown)] = _style.sampled(_style.MANY, len(shown))
    return LabelColours(naming, colours, (), shown)


def _apart(colours: _style.Colours, naming: Naming, shown: Sequence[int], palette: _style.Colours) -> None:
    """A separate colour for each name; an inverse is a lighter shade of the name that it inverts."""
    bases = list(dict.fromkeys(naming.base(label) for label in shown))
    chosen = palette if len(bases) <= len(palette) else _style.sampled(_style.MANY, len(bases))
    for label in shown:
        colour = chosen[bases.index(naming.base(label))]
        colours[label] = _style.lighter(colour) if naming.names[label].endswith(INVERSE) else colour
