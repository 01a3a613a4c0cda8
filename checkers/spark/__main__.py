"""`python -m checkers.spark prepare`: compile the kernels and record the class-data archive, once per machine."""

from __future__ import annotations

import sys

from checkers.spark.java import SparkUnavailable
from checkers.spark.prepare import prepare
from checkers.warm import WrongVerdict

if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"]:
        raise SystemExit("usage: python -m checkers.spark prepare")
    try:
        prepare()
    except SparkUnavailable as problem:
        raise SystemExit(f"cannot prepare Spark: {problem}") from None
    except WrongVerdict as problem:
        raise SystemExit(f"do not trust this installation: {problem}") from None
