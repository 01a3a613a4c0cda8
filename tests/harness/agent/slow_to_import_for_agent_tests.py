"""Clients whose import goes on until the file that KRUCIBLE_TEST_GO names exists."""

import os
import time
from pathlib import Path

while not Path(os.environ["KRUCIBLE_TEST_GO"]).exists():
    time.sleep(0.01)
