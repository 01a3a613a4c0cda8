"""What the rules of Raft are held against: a run that keeps all of them."""

import pytest
from injected_violations import correct_run
from toy_quorum import Evidence


@pytest.fixture
def evidence() -> Evidence:
    return correct_run()
