"""All measurements, one after another: `make bench`, or `make bench FULL=1` for the sizes for which goals are set.

    python -m bench.everything [--full] [--only SCRIPT …] [--into results/bench] [--keep]

Measurements go into one file of JSON lines, `figures.jsonl`, and costs by size also into `cost.png`.  Without --full,
it takes two minutes on two cores and measures up to a million.  With --full, it takes a quarter of an hour and 24 GB of
memory.

A figure depends on the machine and its current state.  Goals and the previous figures, which are stored in the tree
(`bench/last_figures.jsonl`), are scaled to the speed of the machine.  A table at the end lists every figure that misses
its goal or is more than TWICE the previous figure, and every ratio (`… / …`) that has grown by a tenth.  The exit code
is 1 if the table is not empty.  --keep replaces the stored figures by today's.

*Plot.*  One line per figure that was measured at two sizes or more.  Both axes are logarithmic; along the dotted line,
cost is proportional to size.  A cross is a goal.  A figure that belongs to no panel is in the file, but not in the
plot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.instruments.figures import BenchFigure, factor, read

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "last_figures.jsonl"
"""The previous figures, scaled to the machine for which goals were set."""

TWICE = 2.0
LEAST_S = 0.05
"""Seconds below which times are noise; such times are compared only with their goals."""
RATIO, A_TENTH_MORE = " / ", 1.1
"""Mark of a ratio in the name of a figure (to a peer, a new Python or a small kernel of the same run), and maximum
factor by which a ratio may grow.
"""

PLAN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="measure the sizes for which goals are set")
    parser.add_argument(
        "--only", nargs="+", choices=sorted({line.split()[0] for line in PLAN["full"]}), help="these scripts alone"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "bench")
    parser.add_argument(
        "--keep", action="store_true", help="store the figures of today in the tree, for later comparisons"
    )
    chosen = parser.parse_args()
    chosen.into = chosen.into.resolve()
    chosen.into.mkdir(parents=True, exist_ok=True)
    file = chosen.into / "figures.jsonl"
    file.unlink(missing_ok=True)
    print(f"this machine takes {factor():.2f} times as long as the machine of the goals; goals are scaled accordingly")
    broken = []
    for script, *words in map(str.split, PLAN["full" if chosen.full else "quick"]):
        if chosen.only and script not in chosen.only:
            continue
        print(f"\n{script} {' '.join(words)}   load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{script}", *words, "--json", str(file)], cwd=ROOT, check=False
        )
        broken += [script] if done.returncode else []
    if broken:
        print(f"{', '.join(broken)} ended with an error; see above", file=sys.stderr)
        return 3
    measured = read(file)
    plot(measured, chosen.into / "cost.png")
    words = missed(measured, read(KEPT) if KEPT.exists() else [], factor())
    print(f"\n{len(measured)} figures in {file}, {len(words)} missed" + (":" if words else ""))
    for line in words:
        print(line)
    if chosen.keep:
        keep(measured, factor())
        print(f"kept in {KEPT.relative_to(ROOT)}")
    return 1 if words else 0


def missed(measured: Sequence[BenchFigure], last: Sequence[BenchFigure], slower: float) -> list[str]:
    """Return a line for every figure that misses its goal, is more than TWICE the previous figure, or is a ratio that
    has grown by a tenth.

    last: previous figures, on the machine for which goals were set
    slower: factor by which this machine is slower
    """
    known = {(one.figure, one.size, one.unit): one.value for one in last}
    lines = []
    for one in measured:
        before = known.get((one.figure, one.size, one.unit))
        before = None if before is None else before * slower if one.unit == "s" else before
        late = ""
        if one.unit == "s" and before is not None and one.value > max(TWICE * before, LEAST_S):
            late = ", twice as long"
        elif RATIO in one.figure and not one.unit and before is not None and one.value > A_TENTH_MORE * before:
            late = ", a tenth more"
        if late or not one.reached:
            then = "not measured before" if before is None else f"last time {before:.3g}"
            lines.append(f"{one.in_words()}   {then}{late}")
    return lines


def keep(measured: Sequence[BenchFigure], slower: float) -> None:
    """Store the figures, scaled to the machine for which goals were set."""
    known = {(one.figure, one.size, one.unit): one for one in (read(KEPT) if KEPT.exists() else [])}
    for one in measured:
        value = one.value / slower if one.unit == "s" else one.value
        known[one.figure, one.size, one.unit] = replace(one, value=round(value, 4), goal=None)
    KEPT.write_text("".join(json.dumps(asdict(one)) + "\n" for one in known.values()))


def plot(figures: Sequence[BenchFigure], image: Path) -> None:
    """Draw the cost of judging as a function of the size of the input."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, all_axes = pyplot.subplots(2, 2, figsize=(13, 9.5), layout="constrained")
    for axes, panel in zip(all_axes.flat, PLAN["panel"], strict=True):
        begin, units = tuple(panel["begin"]), panel["units"]
        draw(axes, panel["title"], units, [f for f in figures if f.figure.startswith(begin) and f.unit in units])
    picture.savefig(image, dpi=90)


def draw(axes: Any, title: str, units: Mapping[str, float], figures: Sequence[BenchFigure]) -> None:
    """Draw all figures of one panel, by name."""
    by_name: dict[str, list[BenchFigure]] = defaultdict(list)
    for figure in figures:
        by_name[figure.figure].append(figure)
    for name, points in sorted(by_name.items()):
        if len({point.size for point in points}) < 2:
            continue
        points.sort(key=lambda point: point.size)
        values = [point.value * units[point.unit] for point in points]
        [line] = axes.plot([point.size for point in points], values, marker="o", ms=3, label=name)
        for point in points:
            if point.goal is not None:
                goal = point.goal * units[point.unit]
                axes.plot(point.size, goal, marker="x", ms=8, color=line.get_color())
    axes.set(xscale="log", yscale="log", title=title)
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    middle = (low * high) ** 0.5 / (left * right) ** 0.5
    axes.plot([left, right], [left * middle, right * middle], color="grey", ls=":", lw=1)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
