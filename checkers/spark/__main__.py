"""`python -m checkers.spark prepare [--all]`: compile kernels, and record the class-data archive.

Without a flag: the kernels that a run needs.  --all: every kernel, and the archive.
"""

from __future__ import annotations

import sys

from checkers.spark.java import SparkUnavailable
from checkers.spark.prepare import prepare
from checkers.warm_up import WrongVerdict

if __name__ == "__main__":
    if sys.argv[1:] not in (["prepare"], ["prepare", "--all"]):
        raise SystemExit("usage: python -m checkers.spark prepare [--all]")
    try:
        prepare(everything="--all" in sys.argv)
    except SparkUnavailable as problem:
        raise SystemExit(f"cannot prepare Spark: {problem}") from None
    except WrongVerdict as problem:
        raise SystemExit(f"do not trust this installation: {problem}") from None
