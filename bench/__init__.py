"""Measurements of the cost of judging, the simulator, the lake and the bundled KRaft."""

import sys
from pathlib import Path

# The tests own some clusters and measurements; bench imports them from there.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
