"""Where a drawing goes: as wide as the terminal and at least 80 columns, in colour only on a terminal that wants it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import IO, Any

from rich.console import Console

from harness.terminal.witness import draw_witness

WIDTH_LEAST = 80
_WIDTH_MOST = 160
"""Lines longer than this are hard to follow with the eye."""


def show_witness(witness: Mapping[str, Any], *, compact: bool = False, file: IO[str] | None = None) -> None:
    """Print the drawing of a witness (`Witness.to_json`).  file: standard output if none is given.

    Colour follows rich: only on a terminal, and never where NO_COLOR is set.
    """
    columns = shutil.get_terminal_size((WIDTH_LEAST, 24)).columns
    width = min(max(WIDTH_LEAST, columns), _WIDTH_MOST)
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    plain = not (console.encoding or "").lower().startswith("utf")
    console.print(draw_witness(witness, width, compact=compact, plain=plain))
