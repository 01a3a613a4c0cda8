"""Which runs a campaign makes."""

from __future__ import annotations

from harness.campaign.nightly import plan
from harness.registry import load_subject, offered_workloads
from harness.run.refused_before_start import check_spec
from harness.run.session import lacking
from harness.spec import Spec
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


def test_clean_systems_meet_every_kind_of_fault_that_fits_alone_and_all_at_once() -> None:
    jobs = list(plan(range(3), ["clean", "peer"], "namespaces"))
    for job in jobs[: len(jobs) // 3]:
        spec = Spec(
            subject=job.subject, nemesis=job.nemesis, workload=job.workload, nodes=job.nodes, backend="namespaces"
        )
        check_spec(spec)
        assert lacking(spec, "namespaces") == ""
    met = {system: {job.nemesis for job in jobs if job.subject == system} for system in ("kraft", "etcd")}
    assert set(KINDS) - met["kraft"] == {"membership"}
    assert set(KINDS) - met["etcd"] == {"clock"}
    assert ",".join(kind for kind in KINDS if kind != "clock") in met["etcd"]
    assert {job.nodes for job in jobs} == {3, 4, 5}


def test_clean_systems_run_every_workload_that_they_serve_and_each_meets_another_kind_with_another_seed() -> None:
    jobs = list(plan(range(2), ["clean", "peer"], "namespaces"))
    for system in ("kraft", "etcd"):
        mine = [job for job in jobs if job.subject == system]
        assert {job.workload for job in mine} == set(offered_workloads(load_subject(system)))
        first, second = ({j.workload: j.nemesis for j in mine if j.seed == seed} for seed in range(2))
        assert all(first[name] != second[name] for name in first if name != "register")
    assert "test-partition kraft" in {job.title for job in jobs}
    assert any(job.title.startswith("test-") and job.title.endswith(" kraft set") for job in jobs)
