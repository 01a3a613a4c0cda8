"""A number that a file states is used only if it fits into 64 bits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from checkers.record.reading import number, real


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, 2**63, -(2**63) - 1, 1e300, True, "1", None, []]
)
def test_what_is_no_number_of_64_bits_counts_as_missing(value: Any) -> None:
    assert (number(value, -7), real(value, -7.5)) == (-7, -7.5)


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1, 2.75])
def test_a_number_is_read(value: float) -> None:
    assert (number(value, -7), real(value, -7.5)) == (int(value), float(value))
