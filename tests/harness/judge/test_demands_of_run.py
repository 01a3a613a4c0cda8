"""What is demanded follows from spec, subject and workload; the journal cannot lower it."""

from pathlib import Path

import pytest
from journals import write_journal

from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from harness.judge.judge_run import checkers_for, demands_of
from harness.spec import Spec


def test_a_subject_with_nodes_has_servers_and_final_reads_to_show() -> None:
    demands = demands_of(Spec(subject="kraft", nodes=3, keys=2))
    assert demands.servers == ("n1", "n2", "n3")
    assert demands.nodes and demands.logs and demands.traces and demands.elections and demands.faults
    assert demands.final_reads == (("read", "k0"), ("read", "k1"))
    assert demands.reads == {"read"} and demands.writes == {"write"}


def test_the_canary_has_no_servers_to_show() -> None:
    demands = demands_of(Spec(subject="canary", nodes=3))
    assert demands.servers == ()
    assert not (demands.nodes or demands.logs or demands.traces or demands.elections or demands.faults)


@pytest.mark.parametrize("declares", [{}, {"logs": False, "traces": False, "nodes": False, "faults": False}])
def test_the_journal_lowers_nothing(tmp_path: Path, declares: dict[str, bool]) -> None:
    write_journal(tmp_path, outcome={"declares": declares})
    spec = Spec(subject="kraft", nodes=3)
    run = StoredRun(tmp_path, demands_of(spec))
    assert run.servers == ("n1", "n2", "n3")
    names = {checker.name for checker in checkers_for(spec, run.demands)}
    assert {"log-matching", "election-safety", "nodes-stay-up"} <= names


def test_a_log_of_decisions_is_not_searched_for_what_clients_wrote() -> None:
    """Brokers hold the records of clients; the controllers' log holds none of them."""
    names = {
        c.name
        for c in checkers_for(
            Spec(subject="kafka-brokers", workload="kafka-queue"), Demands(logs=True, traces=True, nodes=True)
        )
    }
    assert {"log-matching", "majority-before-mark", "kafka-read-to-end"} <= names
    assert not {"history-against-log", "answers-after-commit"} & names
