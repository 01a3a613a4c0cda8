"""Every element at the time of its answer, in the row of the server that answered: kept, lost or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.plain_words import natural
from harness.report.elements.fates import KEPT, LOST, UNKNOWN, ElementFates
from harness.report.faults.fault_views import FaultView
from harness.report.timeline.figures import DOT, Size, draw, dress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 30_000
"""Kept elements drawn as single dots; of more, an even sample.  Lost and unknown ones are all drawn."""

STRIPS = ((KEPT, 0.24, "ok", 1.3), (UNKNOWN, 0.0, "info", 2.2), (LOST, -0.24, "bad", 2.2))
"""Fate, the place of its strip in a server's row, its colour, and the size of a dot."""

_SPREAD = 0.09
_STEPS = 7
"""Dots of one strip stand on so many levels in turn, so that neighbours do not hide each other."""

ROW_IN = 0.36


def render(fates: ElementFates, faults: Sequence[FaultView], end_ns: int, folder: Path) -> dict[str, str]:
    """Write `<folder>/elements-<size>.svg`; the figures for the page, size -> SVG with the page's colours."""
    rows = sorted({fates.nodes[code] for code in fates.node}, key=natural, reverse=True)
    row_of = np.array([rows.index(name) if name in rows else -1 for name in fates.nodes])

    def paint(axes: Sequence[Axes], size: Size) -> None:
        (only,) = axes
        for fate, offset, colour, px in STRIPS:
            places = np.flatnonzero(fates.fate == fate)
            if fate == KEPT and len(places) > MAX_POINTS:
                places = places[np.linspace(0, len(places) - 1, MAX_POINTS).astype(int)]
            level = (np.arange(len(places)) % _STEPS / (_STEPS - 1) - 0.5) * 2 * _SPREAD
            only.plot(
                fates.time_ns[places] / 1e9, row_of[fates.node[places]] + offset + level, linestyle="", marker="s",
                markersize=px, markeredgewidth=0, color=DOT[colour], rasterized=True,
            )  # fmt: skip
        dress(only, faults, (), end_ns / 1e9)
        wide = "Every element, by the server that answered: kept above, unknown between, lost below"
        title = wide if size.css == "wide" else "Kept above, unknown between, lost below"
        only.set_title(title, loc="left", fontsize="medium")
        only.set_yticks(range(len(rows)), [name or "none" for name in rows])
        only.set_ylim(-0.5, len(rows) - 0.5)
        only.grid(visible=False, axis="y")
        only.set_xlabel("seconds since the test began", loc="right", labelpad=1, fontsize="small")

    return draw("elements", folder, 0.75 + ROW_IN * max(2, len(rows)), (1.0,), paint)
