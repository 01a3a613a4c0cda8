"""The figures of a page: latency and rate of the whole run, and what every figure shares.

Matplotlib draws with the page's light colours; where the figure is put into the page, each becomes the style sheet's
variable, so that one drawing serves both themes.  The files under `plots/` keep the colours and stand alone.  Each
figure is drawn for wide and for narrow pages, with the faults as bands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from checkers.base.history import Type
from harness.report.fault_views import FaultView
from harness.report.run_data import OperationColumns, ReportData

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
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", body)
    body = re.sub(r"font(-family)?: (\d[\w.]*)? ?'[^;\"]*", r"font\1: \2 var(--sans)", body)
    body = re.sub(r'\bd="[^"]*"', lambda path: _shorter(path[0]), body)
    body = re.sub(r">\s+<", "><", body)
    for colour, name in COLOURS.items():
        body = body.replace(colour, f"var(--{name})")
    return body


def _shorter(path: str) -> str:
    """Return the same path in tenths of a point, without spaces that separate nothing."""
    return re.sub(r" ?([MLQCZz]) ?", r"\1", re.sub(r"\s+", " ", re.sub(r"(\.\d)\d+", r"\1", path)))


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
    """Give axes of seconds their frame, the bands of the faults, and a line or a tick for each violation."""
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
    first, others = violations_ns[:1], violations_ns[1:]  # a line for the one that leads, ticks for the others
    for times, low, width in ((first, 0.0, 2.0), (others, 0.94, 1.2)):
        seconds, upright = [t / 1e9 for t in times], axes.get_xaxis_transform()
        axes.vlines(seconds, low, 1, transform=upright, colors=COLOUR["bad"], linewidths=width)


MAX_POINTS = 60_000
"""Operations drawn as single dots; of more, an even sample of the ok ones."""

HEIGHT_IN = 6.7
HEIGHTS = (1.15, 0.9, 1.0)


def plots(data: ReportData, faults: Sequence[FaultView], violations_ns: Sequence[int], folder: Path) -> dict[str, str]:
    """Write `<folder>/latency-and-rate-<size>.svg`; the figures for the page, size -> SVG with the page's colours.

    A run without operations has nothing to plot: {}.
    """
    ops, end_s = data.operations, data.end_ns / 1e9

    def paint(tops: Sequence[Axes], size: Size) -> None:
        _latency(tops[0], ops)
        _quantiles(tops[1], ops, end_s, size.css == "wide")
        _rate(tops[2], ops, end_s)
        for axes in tops:
            dress(axes, faults, violations_ns, end_s)

    return draw("latency-and-rate", folder, HEIGHT_IN, HEIGHTS, paint) if len(ops) else {}


def _latency(axes: Axes, ops: OperationColumns) -> None:
    axes.set_title("Latency of every operation, ms, by time of its call", loc="left", fontsize="medium")
    ms = np.maximum(ops.latency_ns / 1e6, 0.01)
    at = ops.start_ns / 1e9
    ok = ops.matched()
    for mask, name, marker, px in (
        (ok, "ok", "s", 1.1),
        ((ops.type == Type.FAIL) & ~ok, "fail", "^", 2.6),
        (ops.type == Type.INFO, "info", "s", 2.6),
    ):
        places = np.flatnonzero(mask)
        if len(places) > MAX_POINTS:
            places = places[np.linspace(0, len(places) - 1, MAX_POINTS).astype(int)]
        axes.plot(
            at[places], ms[places], linestyle="", marker=marker, markersize=px, markeredgewidth=0,
            color=DOT[name], alpha=0.55 if name == "ok" else 0.9, rasterized=True,
        )  # fmt: skip
    _log_axis(axes, ms)


def _quantiles(axes: Axes, ops: OperationColumns, end_s: float, wide: bool) -> None:
    title = "Latency quantiles of answered operations, ms, per second" if wide else "Quantiles, ms"
    axes.set_title(title, loc="left", fontsize="medium")
    ok = ops.matched()
    at, ms = ops.end_ns[ok] / 1e9, np.maximum(ops.latency_ns[ok] / 1e6, 0.01)
    width = max(1.0, end_s / 240)
    count = max(1, int(np.ceil(end_s / width)))
    bins = np.minimum((at / width).astype(int), count - 1)
    order = np.lexsort((ms, bins))
    edges = np.searchsorted(bins[order], np.arange(count + 1))
    for q, dashes, name in ((0.5, "-", "median"), (0.95, "--", "95 %"), (0.99, ":", "99 %")):
        y = np.full(count, np.nan)
        for b in range(count):
            some = edges[b + 1] - edges[b]
            if some:
                y[b] = ms[order[edges[b] + int(q * (some - 1))]]
        axes.plot((np.arange(count) + 0.5) * width, y, dashes, color=COLOUR["ink"], linewidth=1.1, label=name)
    if len(ms):
        axes.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 0.97),
            ncols=3,
            frameon=False,
            fontsize="small",
            borderaxespad=0.0,
            handlelength=2.2,
            columnspacing=1.2,
        )
        _log_axis(axes, ms)


def _rate(axes: Axes, ops: OperationColumns, end_s: float) -> None:
    axes.set_title("Operations per second: answered up, fail and info down", loc="left", fontsize="medium")
    width = max(0.5, end_s / 160)
    edges = np.arange(0, end_s + width, width)
    at = ops.end_ns / 1e9
    answered = ops.matched()
    ok, fail, info = ops.type == Type.OK, (ops.type == Type.FAIL) & ~answered, ops.type == Type.INFO

    def rate(mask: np.ndarray) -> np.ndarray:
        return np.histogram(at[mask], edges)[0] / width

    up, missed, failed, unknown = rate(ok), rate(answered & ~ok), rate(fail), rate(info)
    for top, base, name in (
        (up, np.zeros_like(up), "ok"),
        (up + missed, up, "ok-pale"),
        (-failed, np.zeros_like(up), "fail"),
        (-failed - unknown, -failed, "info"),
    ):
        axes.stairs(top, edges, baseline=base, fill=True, color=COLOUR[name], linewidth=0)
    axes.axhline(0, color=COLOUR["dim"], linewidth=0.7)
    axes.yaxis.set_major_formatter(lambda y, _: f"{abs(y):,.0f}")
    axes.set_xlabel("seconds since the test began", loc="right", labelpad=1, fontsize="small")


def _log_axis(axes: Axes, ms: np.ndarray) -> None:
    axes.set_yscale("log")
    low = 10.0 ** np.floor(np.log10(max(0.01, float(np.min(ms)) if len(ms) else 1.0)))
    high = 10.0 ** np.ceil(np.log10(max(low * 10, float(np.max(ms)) if len(ms) else 10.0)))
    axes.set_ylim(low * 0.8, high * 1.25)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    axes.minorticks_off()
