"""What the figures of a page share: sizes, colours, the bands of faults, and the way from Matplotlib into the page.

Matplotlib draws with the page's light colours; where the figure is put into the page, each becomes the style sheet's
variable, so that one drawing serves both themes.  The files under `plots/` keep the colours and stand alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from harness.report.faults.fault_views import FaultView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "#1b1f24": "ink",
    "#565e68": "dim",
    "#d9dcd5": "line",
    "#4c6f97": "ok",
    "#a3b6cb": "ok-pale",
    "#ae5802": "fail",
    "#85409b": "info",
    "#efeadc": "band",
    "#b11f1a": "bad",
}
"""Light colour -> variable of the style sheet."""
COLOUR = {name: colour for colour, name in COLOURS.items()}
"""Variable of the style sheet -> light colour."""
DOT = {"ok": "#6089b5", "fail": "#d07c1e", "info": "#a25fba", "bad": "#d0443e"}
"""Colours of dots: they are pixels, and readable in both themes."""


@dataclass(frozen=True, slots=True)
class Size:
    """css: its class in the style sheet.  left, right: of the axes, as shares of the width."""

    css: str
    width_in: float
    font_pt: float
    left: float
    right: float


SIZES = (Size("wide", 9.6, 8.9, 0.052, 0.99), Size("narrow", 4.0, 8.8, 0.125, 0.965))


def prewarm() -> None:
    """Import what drawing needs and draw a nothing, so that the end of a run does not wait for it.

    Takes about a second: imports, and the font tables that the first text looks up.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.set_title("warm")
    axes.plot([1, 10], [1, 10], rasterized=True)
    axes.set_yscale("log")
    figure.savefig(StringIO(), format="svg")


def draw(
    name: str, folder: Path, height_in: float, heights: Sequence[float], paint: Callable[[Sequence[Axes], Size], None]
) -> dict[str, str]:
    """Write `<folder>/<name>-<size>.svg` for each size; the figures for the page, size -> SVG with the page's colours.

    heights: of the axes, one above the other, relative to each other.  paint: draws into them.
    """
    folder.mkdir(exist_ok=True)
    out = {}
    for size in SIZES:
        svg = _svg(name, size, height_in, heights, paint)
        (folder / f"{name}-{size.css}.svg").write_text(svg, encoding="utf-8")
        out[size.css] = for_page(svg, f"{name}-{size.css}")
    return out


def for_page(svg: str, prefix: str) -> str:
    """A stand-alone SVG made fit to stand in the page: page's colours and fonts, ids of its own, no style sheet."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<(metadata|style|defs>\s*<style).*?</\1>", "", body, flags=re.S)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", body)
    body = re.sub(r"font(-family)?: (\d[\w.]*)? ?'[^;\"]*", r"font\1: \2 var(--sans)", body)
    body = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), body)  # a tenth of a point
    for colour, name in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    return body


def _svg(
    name: str, size: Size, height_in: float, heights: Sequence[float], paint: Callable[[Sequence[Axes], Size], None]
) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"{name}-{size.css}",
        "font.size": size.font_pt,
        "axes.edgecolor": COLOUR["line"],
        "axes.labelcolor": COLOUR["dim"],
        "axes.titlecolor": COLOUR["ink"],
        "text.color": COLOUR["ink"],
        "xtick.color": COLOUR["dim"],
        "ytick.color": COLOUR["dim"],
        "path.simplify": True,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(size.width_in, height_in))
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        figure.subplots_adjust(
            left=size.left, right=size.right, top=1 - 0.3 / height_in, bottom=0.33 / height_in, hspace=0.34
        )
        paint(list(axes), size)
        out = StringIO()
        figure.savefig(out, format="svg", dpi=90, transparent=True, metadata={"Date": None})
    return out.getvalue()


def dress(axes: Axes, faults: Sequence[FaultView], violations_ns: Sequence[int], end_s: float) -> None:
    """Give axes of seconds their frame, the bands of the faults, and a line for each violation."""
    axes.set_xlim(0, end_s)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=COLOUR["line"], linewidth=0.6)
    axes.tick_params(length=2.5, width=0.6, pad=2, labelbottom=True, labelsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for f in faults:
        if not f.happened or f.start_ns >= end_s * 1e9:
            continue
        axes.axvspan(f.start_ns / 1e9, f.end_ns / 1e9, color=COLOUR["band"], linewidth=0, zorder=0)
        axes.annotate(
            str(f.number), (f.start_ns / 1e9, 1), xycoords=("data", "axes fraction"), xytext=(2.5, -1.5),
            textcoords="offset points", va="top", fontsize="small", color=COLOUR["dim"],
        )  # fmt: skip
    for t in violations_ns:
        axes.axvline(t / 1e9, color=COLOUR["bad"], linewidth=1.4)
