"""Recovery: what the journal states of it, what proves it besides, and objects that cannot be read any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.history import Type
from checkers.base.verdict import Validity, Verdict

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN
S = 1_000_000_000
SERVERS = ("n1", "n2", "n3", "n4", "n5")


@pytest.fixture
def evidence() -> Evidence:
    """A run with a partition, a limit of 60 s in its spec, and a phase of recovery that took 70 s."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.cut({"n5"})
    quorum.write()
    quorum.heal()
    found = quorum.evidence()
    found.demands = replace(found.demands, recovery_limit_s=60.0)
    found.outcome["phases"].append({"name": "recovery", "start_ns": S, "end_ns": 71 * S})
    return found


def recovery(evidence: Evidence, folder: Path, **stated: Any) -> Verdict:
    evidence.outcome["recovery"] |= stated
    return evidence.judge(folder, "recovery")["recovery"]


def looked_at(*nodes: str, dead: str = "") -> dict[str, list[str]]:
    return {node: ["process dead" if node == dead else "process running", "caught_up()"] for node in nodes}


def proof(verdict: str = "as ordered", *wrong: str, running: tuple[str, ...] = (), dead: tuple[str, ...] = ()) -> Row:
    states = dict.fromkeys(running, "running") | dict.fromkeys(dead, "dead")
    return {"verdict": verdict, "links": {}, "states": states, "wrong": list(wrong)}


def not_recovered(waiting_for: str, seconds: float = 60.1, **more: Any) -> dict[str, Any]:
    return {"recovered": False, "waiting_for": waiting_for, "seconds": seconds, "limit_s": 60.0, **more}


@pytest.mark.parametrize(
    ("stated", "expected", "words"),
    [
        ({}, VALID, ""),
        ({"seconds": 3}, VALID, ""),
        ({"seconds": 64.0}, VALID, ""),
        ({"seconds": 66.0, "limit_s": 60.0}, UNKNOWN, "the limit is 60 s"),
        ({"seconds": 90.0}, UNKNOWN, "the phase of recovery 70.0 s"),
        ({"seconds": None}, UNKNOWN, "not known after how many seconds"),
        ({"seconds": -1.0}, UNKNOWN, "recovery took -1.0 s"),
        ({"proof": None}, UNKNOWN, "no proof of the last heal"),
        ({"proof": proof("not as ordered")}, VALID, ""),  # a system may recover from half a heal
        ({"proof": proof("indeterminate")}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS), "proof": proof(running=SERVERS)}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS, dead="n5"), "proof": proof(running=SERVERS[:4])}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS), "proof": proof()}, VALID, ""),
        ({"looked_at": {}, "proof": proof(running=SERVERS)}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS[:3])}, UNKNOWN, "did not look at n4, n5"),
        (
            {"looked_at": looked_at(*SERVERS) | {"n5": ["process running"]}, "without_evidence": []},
            UNKNOWN,
            "nothing but the process of n5",
        ),
        (not_recovered("n4 is 12 entries behind"), INVALID, "n4 is 12 entries behind"),
        (not_recovered("a leader", proof=proof("not as ordered", "n1>n2 is cut")), UNKNOWN, "n1>n2 is cut"),
        (not_recovered("mine.py line 9: KeyError", not_known=True), UNKNOWN, "mine.py line 9: KeyError"),
        (not_recovered("n4", beats_sent={"n1": 0.97, "n2": 0.6}), INVALID, "n4"),
        (not_recovered("n4", beats_sent={"n1": 0.97, "n2": 0.1}), UNKNOWN, "n2 10%"),
        (not_recovered("n4", 3.0, beats_sent={"n1": 0.97, "n2": 0.1}), INVALID, "n4"),  # time would not have helped
    ],
)
def test_what_the_journal_states(
    evidence: Evidence, tmp_path: Path, stated: dict[str, Any], expected: Validity, words: str
) -> None:
    verdict = recovery(evidence, tmp_path, **stated)
    assert verdict.validity is expected, verdict.reason
    assert words in verdict.reason + "".join(witness.summary for witness in verdict.witnesses)


def test_without_faults_there_may_be_nothing_to_recover_from(evidence: Evidence, tmp_path: Path) -> None:
    evidence.faults.clear()
    assert recovery(evidence, tmp_path, needed=False).validity is Validity.NOT_APPLICABLE


def test_a_run_that_ended_before_recovery_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome |= {"recovery": {}, "set_up_failure": "no leader within 60 s"}
    verdict = recovery(evidence, tmp_path)
    assert verdict.validity is UNKNOWN and "no leader within 60 s" in verdict.reason


def test_servers_that_end_again_after_the_heal_started_them_did_not_recover(evidence: Evidence, tmp_path: Path) -> None:
    dead = ("n1", "n2", "n3")
    wrong = [f"{node} ordered running: it is dead" for node in dead]
    half = proof("not as ordered", *wrong, running=("n4", "n5"), dead=dead)
    stated = not_recovered("n1 and n2 and n3 died", proof=half)
    assert recovery(evidence, tmp_path / "no deaths are known", **stated).validity is UNKNOWN
    evidence.outcome["deaths"] = [{"node": node, "time_ns": 5000, "status": 1, "ordered": False} for node in dead]
    verdict = recovery(evidence, tmp_path / "by themselves")
    assert verdict.validity is INVALID
    assert "n1, n2, n3 ended after a start" in verdict.witnesses[0].facts["why"][0]
    half["wrong"] += ["n4>n5 is cut"]
    assert recovery(evidence, tmp_path / "and a link is cut").validity is UNKNOWN


def test_servers_that_the_kernel_killed_for_want_of_memory_show_nothing(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [{"node": "n3", "time_ns": 5000, "status": -9, "ordered": False, "oom_kills": 1}]
    verdict = recovery(evidence, tmp_path, **not_recovered("n3"))
    assert verdict.validity is UNKNOWN and "out-of-memory killer" in verdict.reason


# Answers of clients


HEALED_NS = 10**15


def fault(healed_ns: int = HEALED_NS) -> Row:
    return {"card": {"number": 1}, "nodes": [], "injected_ns": 1, "healed_ns": healed_ns, "measured": []}


@pytest.fixture
def unseen(evidence: Evidence) -> Evidence:
    """A run of two servers, of which recovery saw only the process of n4."""
    evidence.demands = replace(evidence.demands, servers=("n1", "n4"))
    evidence.faults[:] = [fault()]
    evidence.outcome["phases"][-1] |= {"start_ns": HEALED_NS + 10, "end_ns": HEALED_NS + 9 * S}
    evidence.outcome["recovery"] |= {
        "looked_at": {"n1": ["process running", "caught_up()"], "n4": ["process running"]},
        "without_evidence": ["n4"],
    }
    return evidence


def test_a_server_of_which_only_the_process_was_seen_makes_it_unknown(unseen: Evidence, tmp_path: Path) -> None:
    unseen.answer("n4", HEALED_NS - 1)
    unseen.answer("n1", HEALED_NS + 1)
    unseen.answer("n4", HEALED_NS + 2, Type.FAIL)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is UNKNOWN
    assert "n4 came back" in verdict.reason and "`caught_up`" in verdict.reason
    assert verdict.looked_at["evidence"] == "process running: n1, n4; caught_up(): n1"


@pytest.mark.parametrize(
    ("healed_ns", "ended_ns", "answered_ns", "expected"),
    [
        (HEALED_NS, None, HEALED_NS, VALID),
        (-1, None, HEALED_NS + 9, UNKNOWN),  # only recovery healed it, which begins after 10 ns
        (-1, None, HEALED_NS + 10, VALID),
        (None, None, HEALED_NS - 1, VALID),  # there was no fault
        (HEALED_NS, HEALED_NS + 5, HEALED_NS + 4, UNKNOWN),  # the server died after its answer
        (HEALED_NS, HEALED_NS + 10 * S, HEALED_NS + 4, VALID),  # the harness stopped it at the end
    ],
)
def test_an_answer_after_the_last_heal_and_the_last_death_is_evidence(
    unseen: Evidence, tmp_path: Path, healed_ns: int | None, ended_ns: int | None, answered_ns: int, expected: Validity
) -> None:
    unseen.faults[:] = [] if healed_ns is None else [fault(), fault(healed_ns)]
    unseen.outcome["deaths"] = [] if ended_ns is None else [{"node": "n4", "time_ns": ended_ns, "ordered": True}]
    unseen.answer("n4", answered_ns)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is expected, verdict.reason
    assert str(verdict.looked_at["evidence"]).endswith("after the last heal: n4") == (expected is VALID)


@pytest.fixture
def locks(unseen: Evidence) -> Evidence:
    """A run of a workload without final reads, whose system states of each server that it came back."""
    unseen.demands = replace(unseen.demands, concurrency=2, final_reads=())
    unseen.outcome["recovery"] |= {"looked_at": looked_at("n1", "n4"), "without_evidence": []}
    return unseen


def test_without_final_reads_the_word_of_the_system_alone_shows_nothing(locks: Evidence, tmp_path: Path) -> None:
    locks.answer("n1", HEALED_NS - 1)
    locks.answer("n1", HEALED_NS + 1, Type.FAIL)
    verdict = recovery(locks, tmp_path / "none")
    assert verdict.validity is UNKNOWN and "no client got an answer after the last heal" in verdict.reason
    locks.answer("n4", HEALED_NS + 1)
    assert recovery(locks, tmp_path / "one").validity is VALID


def test_final_reads_or_no_fault_demand_no_such_answer(locks: Evidence, tmp_path: Path) -> None:
    demands, locks.demands = locks.demands, replace(locks.demands, final_reads=(("read", "k0"),))
    assert recovery(locks, tmp_path / "final reads").validity is VALID
    locks.demands = demands
    locks.faults.clear()
    assert recovery(locks, tmp_path / "no fault").validity is VALID


# Objects that cannot be read any more


@pytest.fixture
def gone() -> Evidence:
    """Both keys are written and read; after the heal every read is an error for a minute."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.write("k1")
    quorum.read_all()
    quorum.cut({"n5"})
    quorum.heal()
    made = quorum.evidence()
    last_ns = max(row["time_ns"] for row in made.history)
    reading = {"name": "final reads", "start_ns": last_ns + 1, "end_ns": last_ns + 1 + int(60.1 * S)}
    made.outcome["phases"] = [p for p in made.outcome["phases"] if p["name"] != "final reads"] + [reading]
    made.outcome["recovery"] |= {"recovered": True, "seconds": 1.0, "limit_s": 60.0}
    made.outcome["final_reads"] = dict.fromkeys(("k0", "k1"), 'UndefinedTable: relation "kept" does not exist')
    return made


def test_a_system_in_which_nothing_can_be_read_any_more_has_not_come_back(gone: Evidence, tmp_path: Path) -> None:
    (witness,) = recovery(gone, tmp_path).witnesses
    assert witness.kind == "not readable any more"
    assert "no key could be read for 60 s after recovery" in witness.summary and "UndefinedTable" in witness.summary


def of_k1(error: str) -> Callable[[Evidence], None]:
    return lambda evidence: evidence.outcome["final_reads"].update(k1=error)


def too_short(evidence: Evidence) -> None:
    evidence.outcome["phases"][-1]["end_ns"] -= 10 * S


def not_healed(evidence: Evidence) -> None:
    evidence.outcome["recovery"]["proof"] = {"verdict": "indeterminate"}


def beyond_the_budget(evidence: Evidence) -> None:
    evidence.faults[0]["over_budget"] = True


def damaged(evidence: Evidence) -> None:
    evidence.faults[0] |= {"settings": {"damages_data": True}, "nodes": ["n5"]}


def never_read_before(evidence: Evidence) -> None:
    for row in evidence.history:
        if (row["f"], row["key"], row["type"]) == ("read", "k1", Type.OK):
            row["type"] = Type.INFO


def refused(error: str, ends: tuple[Type, ...] = (Type.FAIL, Type.FAIL)) -> Callable[[Evidence], None]:
    """k1 is read by a client in the final phase, and k0 is ok."""

    def change(evidence: Evidence) -> None:
        evidence.outcome["final_reads"] |= {"k0": "ok", "k1": error}
        began_ns = evidence.outcome["phases"][-1]["start_ns"]
        (blank, *_) = (row for row in evidence.history if (row["f"], row["key"]) == ("read", "k1"))
        for number, type_ in enumerate(each for end in ends for each in (Type.INVOKE, end)):
            row = {"index": len(evidence.history), "time_ns": began_ns + number, "type": type_, "value": None}
            row |= {"error": None if type_ is Type.INVOKE else error, "process": 1}
            evidence.history.append(blank | row)

    return change


@pytest.mark.parametrize(
    "otherwise",
    [
        of_k1("ok"),
        of_k1("not sent: the client is still starting"),
        of_k1("timeout"),
        too_short,
        not_healed,
        beyond_the_budget,
        damaged,
        never_read_before,
        *map(refused, ("timeout", "ConnectionResetError: reset", "not leader", "")),
        refused("stream not found", (Type.FAIL, Type.INFO)),
    ],
)
def test_nothing_is_claimed_where_something_else_may_be_the_cause(
    otherwise: Callable[[Evidence], None], gone: Evidence, tmp_path: Path
) -> None:
    otherwise(gone)
    assert recovery(gone, tmp_path).validity is not INVALID


def test_one_object_that_is_gone_is_named_with_its_error(gone: Evidence, tmp_path: Path) -> None:
    refused("stream not found")(gone)
    (witness,) = recovery(gone, tmp_path).witnesses
    assert witness.summary == (
        "k1 could not be read for 60 s after recovery: every read was answered with stream not found"
    )
