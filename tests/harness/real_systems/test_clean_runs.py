"""Clean runs are data as findings are: each can be run, and none is mistaken for a finding."""

from __future__ import annotations

import pytest

from harness.campaign.findings_ledger import Try, clean_rows
from harness.real_systems.clean_runs import CLEAN_RUNS, clean_in_words, names_of_runs, spec_of
from harness.real_systems.known_findings import FINDINGS
from harness.run.refused_before_start import check_spec
from harness.spec import WrongSpec


@pytest.mark.parametrize("name", CLEAN_RUNS)
def test_a_clean_run_can_be_run(name: str) -> None:
    spec = spec_of(name, 7, "docker", clean=True)
    check_spec(spec)
    assert (spec.seed, spec.backend, spec.workload) == (7, "docker", CLEAN_RUNS[name].workload)


def test_findings_and_clean_runs_have_names_of_their_own() -> None:
    assert len(set(names_of_runs())) == len(FINDINGS) + len(CLEAN_RUNS)


@pytest.mark.parametrize(
    ("name", "clean", "words"),
    [
        ("etcd-set", False, "call it with --clean"),
        ("redis", True, "no clean counterpart"),
        ("etcd-sets", True, "did you mean 'etcd-set'"),
    ],
)
def test_a_run_that_does_not_exist_is_refused(name: str, clean: bool, words: str) -> None:
    with pytest.raises(WrongSpec, match=words):
        spec_of(name, 1, "docker", clean)


def test_words_say_what_is_run() -> None:
    assert clean_in_words("postgres-bank") == "PostgreSQL 15: one node, all transactions SERIALIZABLE"
    assert clean_in_words("mariadb") == "MariaDB 10.11, but innodb_snapshot_isolation=ON"


def test_a_row_counts_valid_runs_and_names_the_others() -> None:
    tries = [Try("etcd-set", True, verdict == "valid", verdict, 60.0, "abcdabc") for verdict in ("valid", "unknown")]
    rows = dict(zip(CLEAN_RUNS, clean_rows(tries), strict=True))
    assert rows["etcd-set"][2:] == ("`set`", "`partition`, `pause`, `power`", "1 of 2 at abcdabc, 1 unknown")
    assert rows["etcd-lists"][-1] == "not run yet"
