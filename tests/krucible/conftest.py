"""Tests of the plugin run pytest in pytest."""

from __future__ import annotations

import pytest


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    """With a configuration, without which pytest-asyncio warns in each of these inner runs."""
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return pytester
