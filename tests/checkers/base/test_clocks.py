"""Owners of clocks, as in test.json."""

from __future__ import annotations

import pytest

from checkers.record.header import UNBOUNDED_NS, Header, error_ns, one_clock, one_kernel, started_on
from tests.support.records_of_runs import header_of

REMOTE = header_of(
    {
        "spec": {"backend": "ssh"},
        "started_monotonic_ns": 1_000,
        "clocks": {"n1": {"ahead_ns": 500, "error_ns": 7}, "n2": {"ahead_ns": -2_000, "error_ns": 9}},
    }
)


def test_nodes_of_one_machine_share_the_clock_of_the_harness() -> None:
    test = header_of({"spec": {"backend": "docker"}, "started_monotonic_ns": 1_000, "clocks": {}})
    assert one_clock(test)
    assert (started_on(test)("n1"), error_ns(test, "n1")) == (1_000, 0)


def test_other_machines_have_clocks_of_their_own() -> None:
    assert not one_clock(REMOTE)
    assert [started_on(REMOTE)(node) for node in ("n1", "n2", "n3")] == [1_500, -1_000, 1_000]
    assert [error_ns(REMOTE, node) for node in ("n1", "n2", "n3")] == [7, 9, UNBOUNDED_NS]


@pytest.mark.parametrize("test", [None, header_of({}), header_of({"spec": {"backend": "ssh"}})])
def test_what_was_not_measured_is_not_known(test: Header | None) -> None:
    assert not one_clock(test)
    assert (started_on(test)("n1"), error_ns(test, "n1")) == (0, UNBOUNDED_NS)


@pytest.mark.parametrize(
    ("recorded", "one", "kernel"),
    [("same kernel", True, True), ("same machine", True, False), ("own", False, False), ("mine", False, False)],
)
def test_the_clock_that_a_run_records_decides_and_not_the_name_of_its_backend(
    recorded: str, one: bool, kernel: bool
) -> None:
    for backend in ("docker", "ssh", "a backend of next year"):
        test = header_of({"spec": {"backend": backend}, "nodes_clock": recorded})
        assert (one_clock(test), one_kernel(test)) == (one, kernel)
