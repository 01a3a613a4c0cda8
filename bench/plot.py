"""Draw what judging costs against how much is judged: `python bench/plot.py FIGURES.jsonl cost.png`.

One line per figure that was measured at two sizes or more, both axes logarithmic; a straight line of slope one, the
dotted one, is cost in proportion.  Left seconds, right peak memory.  A cross is a goal.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from figures import Figure, read
from matplotlib import pyplot
from matplotlib.axes import Axes

PANELS = (({"s": 1.0}, "seconds to the verdict"), ({"MB": 1.0, "GB": 1000.0}, "peak memory, MB"))
"""Of each panel: what one of each unit is there, and its title."""

LEFT_OUT = ("on disk", "seal", "in process")
"""Figures whose names begin or end like this are in the file and not in the picture."""


def main(words: Sequence[str]) -> int:
    if len(words) != 2 or not Path(words[0]).exists():
        print("usage: python bench/plot.py FIGURES.jsonl IMAGE.png", file=sys.stderr)
        return 3
    figures = read(Path(words[0]))
    picture, both = pyplot.subplots(1, 2, figsize=(13, 5.4), layout="constrained")
    for axes, (units, title) in zip(both, PANELS, strict=True):
        draw(axes, [figure for figure in figures if figure.unit in units], units, title)
    picture.savefig(words[1], dpi=110)
    return 0


def draw(axes: Axes, figures: Sequence[Figure], scale: Mapping[str, float], title: str) -> None:
    """All figures of one panel, by name."""
    by_name: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        if not figure.figure.startswith(LEFT_OUT) and not figure.figure.endswith(LEFT_OUT):
            by_name[figure.figure].append(figure)
    for name, points in sorted(by_name.items()):
        if len({point.size for point in points}) < 2:
            continue
        points.sort(key=lambda point: point.size)
        [line] = axes.plot(
            [p.size for p in points], [p.value * scale[p.unit] for p in points], marker="o", ms=3, label=name
        )
        for point in points:
            if point.goal is not None:
                axes.plot(point.size, point.goal * scale[point.unit], marker="x", ms=8, color=line.get_color())
    axes.set(xscale="log", yscale="log", title=title, xlabel="events, transactions, entries: how much is judged")
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    middle = (low * high) ** 0.5 / (left * right) ** 0.5
    axes.plot([left, right], [left * middle, right * middle], color="grey", ls=":", lw=1)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.grid(alpha=0.25)
    if by_name:
        axes.legend(fontsize=7, loc="upper left")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
