"""Which runs a campaign makes."""

from __future__ import annotations

from harness.campaign.nightly import plan
from harness.registry import load_subject
from nemesis.catalog import KINDS


def test_a_planted_bug_is_hunted_with_a_fault_and_a_workload_that_can_show_it() -> None:
    bugs = load_subject("kraft").bugs
    jobs = {job.bug: job for job in plan([1], ["bugs"])}
    for name, job in jobs.items():
        assert name is not None
        assert job.nemesis in bugs[name].shown_by
        assert job.workload in bugs[name].workloads
    missing = bugs.keys() - jobs.keys()
    assert not [name for name in missing if bugs[name].in_containers], sorted(KINDS)
