"""Witnesses drawn with characters: what the report shows, for whoever sits at a terminal or reads a log of CI.

draw_witness(witness, width, compact=…) -> something rich can print
show_witness(witness, …)                   prints it as wide as the terminal
"""

from harness.terminal.show import WIDTH_LEAST, show_witness
from harness.terminal.witness import draw_witness

__all__ = ["WIDTH_LEAST", "draw_witness", "show_witness"]
