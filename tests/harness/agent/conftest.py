from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_agents import LocalAgent, local_agent


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[LocalAgent]:
    async with local_agent(tmp_path) as started:
        yield started
