"""Measurements of the cost of judging, the simulator, the lake and the bundled KRaft."""

import sys
from pathlib import Path

# Some clusters and measurements belong to the tests, which import them from there.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
