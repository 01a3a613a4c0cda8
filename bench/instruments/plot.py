"""Draw what judging costs against how much is judged: `python -m bench.instruments.plot FIGURES.jsonl cost.png`.

One line per figure that was measured at two sizes or more, both axes logarithmic; along the dotted line cost is in
proportion.  A cross is a goal.  A figure that belongs to no panel is in the file and not in the picture.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.instruments.figures import BenchFigure, read


@dataclass(frozen=True, slots=True)
class Panel:
    """begin: how the names of its figures begin.  units: what one of each unit is on its axis."""

    title: str
    begin: tuple[str, ...]
    units: Mapping[str, float]


_S = {"s": 1.0}
_MB = {"MB": 1.0, "GB": 1000.0}
PANELS = (
    Panel("linearizability on Spark: events, s", ("linearizability on Spark", "one late stale read"), _S),
    Panel(
        "transactions, operations on Kafka's logs, s",
        ("list-append, valid", "list-append, worst", "rw-register, valid", "rw-register, worst", "Kafka's logs, valid"),
        _S,
    ),
    Panel(
        "logs and traces: rows of each of five nodes, s",
        (
            *("log-matching", "committed", "election", "high-watermark", "history-against", "leader-comp"),
            *("monotonicity", "state-machine"),
        ),
        _S,
    ),
    Panel("peak memory, MB", ("peak memory of a worker", "committed", "history-against", "list-append, peak"), _MB),
)


def main(words: Sequence[str]) -> int:
    if len(words) != 2 or not Path(words[0]).exists():
        print("usage: python -m bench.instruments.plot FIGURES.jsonl IMAGE.png", file=sys.stderr)
        return 3
    figures = read(Path(words[0]))
    picture, all_axes = pyplot.subplots(2, 2, figsize=(13, 9.5), layout="constrained")
    for axes, panel in zip(all_axes.flat, PANELS, strict=True):
        draw(axes, panel, [f for f in figures if f.figure.startswith(panel.begin) and f.unit in panel.units])
    picture.savefig(words[1], dpi=90)
    return 0


def draw(axes: Axes, panel: Panel, figures: Sequence[BenchFigure]) -> None:
    """All figures of one panel, by name."""
    by_name: dict[str, list[BenchFigure]] = defaultdict(list)
    for figure in figures:
        by_name[figure.figure].append(figure)
    for name, points in sorted(by_name.items()):
        if len({point.size for point in points}) < 2:
            continue
        points.sort(key=lambda point: point.size)
        values = [point.value * panel.units[point.unit] for point in points]
        [line] = axes.plot([point.size for point in points], values, marker="o", ms=3, label=name)
        for point in points:
            if point.goal is not None:
                goal = point.goal * panel.units[point.unit]
                axes.plot(point.size, goal, marker="x", ms=8, color=line.get_color())
    axes.set(xscale="log", yscale="log", title=panel.title)
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    middle = (low * high) ** 0.5 / (left * right) ** 0.5
    axes.plot([left, right], [left * middle, right * middle], color="grey", ls=":", lw=1)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
