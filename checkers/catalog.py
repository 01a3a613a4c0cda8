"""Every checker by name, in the order in which reports show them."""

from __future__ import annotations

from checkers.checker import Checker
from checkers.linearizability import LINEARIZABILITY
from checkers.statistics import STATISTICS

CATALOG: dict[str, Checker] = {checker.name: checker for checker in (LINEARIZABILITY, STATISTICS)}
