"""`python -m checkers.spark prepare [--all|--behind]`: compile kernels and record the class-data archive.

Without a flag: what a run needs.  --all: every kernel.  --behind: every kernel, at the lowest priority, in silence.
"""

from __future__ import annotations

import sys

from checkers.spark.java import SparkUnavailable
from checkers.spark.prepare import prepare, prepare_behind
from checkers.warm_up import WrongVerdict

if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["prepare", "--all"], ["prepare", "--behind"]):
        raise SystemExit("usage: python -m checkers.spark prepare [--all|--behind]")
    try:
        if "--behind" in sys.argv:
            prepare_behind()
        else:
            prepare(everything="--all" in sys.argv)
    except SparkUnavailable as problem:
        raise SystemExit(f"cannot prepare Spark: {problem}") from None
    except WrongVerdict as problem:
        raise SystemExit(f"do not trust this installation: {problem}") from None
