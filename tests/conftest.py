"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from checkers.spark.session import SparkJudge


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkJudge]:
    """The one Spark of a test session; a process can have no second."""
    judge = SparkJudge()
    judge.start_in_background()
    yield judge
    judge.stop()
