"""Latency and rate of the whole run, with the faults as bands: one figure, drawn for wide and for narrow pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from checkers.base.history import Type
from harness.report.faults.fault_views import FaultView
from harness.report.run_data.operation_columns import OperationColumns
from harness.report.run_data.report_data import ReportData
from harness.report.timeline.figures import COLOUR, DOT, Size, draw, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 60_000
"""Operations drawn as single dots; of more, an even sample of the ok ones."""

HEIGHT_IN = 6.7
HEIGHTS = (1.15, 0.9, 1.0)


def render(data: ReportData, faults: Sequence[FaultView], violations_ns: Sequence[int], folder: Path) -> dict[str, str]:
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
