"""The history against the log, and entries of the system: each rule broken on purpose, and what is no violation."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from toy_quorum import Entry, Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict
from checkers.catalog import select

NAME, SYSTEM = "history-against-log", "system-entries"
FAIL, INFO = 2, 3


@pytest.fixture
def quorum() -> Quorum:
    """Two keys, four acknowledged writes, and one whose outcome is unknown but which is in the log."""
    quorum = Quorum()
    quorum.elect("n1")
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.write("k0", replicate=False)
    quorum.refuse("k1")
    quorum.replicate()
    return quorum


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def entry(evidence: Evidence, node: str, value: int) -> Row:
    return next(r for r in evidence.logs[node] if r["value"] == value)


def swap(evidence: Evidence, node: str, one: int, two: int) -> None:
    a, b = entry(evidence, node, one), entry(evidence, node, two)
    for column in ("key", "value"):
        a[column], b[column] = b[column], a[column]


def test_an_unknown_write_may_stand_in_the_log_once_or_not_at_all(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    assert [e["type"] for e in evidence.history if e["value"] == 5] == [0, INFO]
    assert judged(evidence, tmp_path / "once").validity is Validity.VALID
    for node in evidence.logs:
        entry(evidence, node, 5)["key"] = None
    assert judged(evidence, tmp_path / "never").validity is Validity.VALID


def test_an_acknowledged_write_that_is_overwritten_later_is_still_missed(quorum: Quorum, tmp_path: Path) -> None:
    """No register can show this: the key was written again."""
    evidence = quorum.evidence()
    entry(evidence, "n3", 1)["key"] = None
    verdict = judged(evidence, tmp_path)
    assert [w.kind for w in verdict.witnesses] == ["acknowledged write missing from a log"]
    witness = verdict.witnesses[0]
    assert witness.facts["nodes"] == ["n3"] and witness.facts["value"] == 1
    assert [(e["type"], e["value"]) for e in witness.events] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("f", ["add", "append"])
def test_what_is_put_into_sets_and_logs_is_a_write_too(quorum: Quorum, f: str, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    for event in evidence.history:
        event["f"] = f if event["f"] == "write" else event["f"]
    verdict = judged(evidence, tmp_path / "whole")
    assert verdict.validity is Validity.VALID and verdict.looked_at["acknowledged writes"] == 4
    entry(evidence, "n3", 1)["key"] = None
    assert [w.kind for w in judged(evidence, tmp_path / "lost").witnesses] == ["acknowledged write missing from a log"]


def test_a_failed_write_in_a_tail_that_was_truncated_later(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.cut({"n1"})
    quorum.write()
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    quorum.heal()
    evidence = quorum.evidence()
    assert judged(evidence, tmp_path / "as it was").validity is Validity.VALID
    next(e for e in evidence.history if e["type"] == INFO)["type"] = FAIL
    witness = judged(evidence, tmp_path / "failed").witnesses[0]
    assert witness.kind == "failed write in a log" and witness.facts["copies"] == [0]
    assert [event["type"] for event in witness.events] == [0, FAIL] and witness.rows[0]["table"] == "log"


@pytest.mark.parametrize("value", [2, 5], ids=["ok", "info"])
def test_a_write_in_a_log_twice(quorum: Quorum, tmp_path: Path, value: int) -> None:
    evidence = quorum.evidence()
    first = entry(evidence, "n2", value)
    evidence.logs["n2"][0] |= {"key": first["key"], "value": value}
    witness = judged(evidence, tmp_path).witnesses[0]
    assert witness.kind == "write in a log twice" and witness.facts["offsets"] == [0, first["offset"]]


@pytest.mark.parametrize("values", [(1, 2), (1, 3)], ids=["of two keys", "of one key"])
def test_the_order_of_the_log_respects_real_time(quorum: Quorum, tmp_path: Path, values: tuple[int, int]) -> None:
    evidence = quorum.evidence()
    swap(evidence, "n4", *values)
    witness = judged(evidence, tmp_path).witnesses[0]
    assert witness.kind == "log order against real time"
    assert "had completed before" in witness.summary
    completed = {e["value"]: e["index"] for e in witness.events if e["type"] == 1}
    invoked = {e["value"]: e["index"] for e in witness.events if e["type"] == 0}
    earlier, later = (r["value"] for r in witness.rows)
    assert completed[later] < invoked[earlier]


def test_overlapping_writes_may_stand_in_either_order(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    calls = {e["value"]: e for e in evidence.history if e["type"] == 0}
    answers = {e["value"]: e for e in evidence.history if e["type"] == 1}
    calls[2]["index"], answers[1]["index"] = answers[1]["index"], calls[2]["index"]
    evidence.history.sort(key=lambda e: e["index"])
    swap(evidence, "n1", 1, 2)
    assert judged(evidence, tmp_path).validity is Validity.VALID


def test_an_unknown_write_never_completed_so_nothing_can_come_after_it(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    next(e for e in evidence.history if e["value"] == 1 and e["type"] == 1)["type"] = INFO
    swap(evidence, "n4", 1, 4)
    swap(evidence, "n4", 4, 2)
    swap(evidence, "n4", 2, 3)
    swap(evidence, "n4", 3, 4)
    values = [r["value"] for r in evidence.logs["n4"] if r["value"]]
    assert values.index(1) > values.index(2)
    verdict = judged(evidence, tmp_path)
    assert all(w.facts["value"] != 1 for w in verdict.witnesses), values


def test_values_written_twice_make_it_unknown(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    for e in evidence.history:
        if e["key"] == "k0" and e["value"] == 3:
            e["value"] = 1
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "share" in verdict.reason


def test_no_log_that_has_caught_up_is_unknown(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    for c in evidence.copies:
        c["when"] = "before heal 1"
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN and "caught up" in verdict.reason


def test_a_mark_said_after_a_log_was_copied_is_not_demanded_of_it(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    rows = evidence.traces["n1"]
    rows.append(dict(rows[-1]) | {"event": "high-watermark", "offset": 99, "hash": 1, "seq": rows[-1]["seq"] + 1})
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["logs caught up at the end"] == 5


def test_an_entry_that_no_client_wrote_has_no_cause(quorum: Quorum, tmp_path: Path) -> None:
    """A write in every log that was never invoked, and a value removed; in a whole history and in a shortened one."""
    clean = quorum.evidence()
    assert judged(deepcopy(clean).ended(), tmp_path / "clean").validity is Validity.VALID
    for number, (key, value) in enumerate((("k0", 999), ("k7", 2), ("k1", None))):
        evidence = deepcopy(clean)
        for rows in evidence.logs.values():
            next(r for r in rows if r["offset"] == 0).update(key=key, value=value)
        verdict = judged(evidence, tmp_path / f"short {number}")
        assert verdict.validity is Validity.UNKNOWN
        assert "no write in the history explains 1 entries" in verdict.reason
        verdict = judged(evidence.ended(), tmp_path / f"whole {number}")
        assert verdict.validity is Validity.INVALID
        assert {w.kind for w in verdict.witnesses} == {"entry that no client wrote"}
        assert (verdict.witnesses[0].facts["key"], verdict.witnesses[0].facts["value"]) == (key, value)
        assert verdict.witnesses[0].facts["offset"] == 0


# Entries of the system: each opens an epoch or follows from a create, and one too many is found


@pytest.fixture
def created() -> Quorum:
    """Two creates and two epochs."""
    quorum = Quorum()
    quorum.elect("n1")
    for key in ("k0", "k1"):
        create(quorum, key)
    quorum.write()
    quorum.elect("n2")
    quorum.write("k1")
    return quorum


def create(quorum: Quorum, key: str, outcome: int = 1) -> None:
    """A client creates an object, and the leader writes one entry for it."""
    process, quorum._process = quorum._process, quorum._process + 1
    quorum._event(process, 0, key, None, "n1", "create")
    add_entry(quorum)
    quorum._event(process, outcome, key, None, "n1", "create")


def add_entry(quorum: Quorum) -> None:
    """The leader writes an entry that is no client's write."""
    leader = quorum.nodes[str(quorum.leader)]
    quorum._append(leader, [Entry(leader.epoch, quorum._crc())])
    quorum.replicate()


def explained(quorum: Quorum, folder: Path) -> Verdict:
    """The verdict on the run with a history that ends as the harness ends it."""
    return quorum.evidence().ended().judge(folder, SYSTEM)[SYSTEM]


def test_openings_and_creates_explain_every_entry(created: Quorum, tmp_path: Path) -> None:
    verdict = explained(created, tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at == {"logs": 5, "entries": 30, "epochs opened": 10, "creates": 2}


@pytest.mark.parametrize(("outcome", "validity"), [(1, Validity.VALID), (2, Validity.INVALID), (3, Validity.VALID)])
def test_a_create_is_a_cause_unless_it_failed(
    created: Quorum, tmp_path: Path, outcome: int, validity: Validity
) -> None:
    create(created, "k2", outcome)
    assert explained(created, tmp_path).validity is validity


def test_a_create_that_is_tried_again_explains_one_batch(created: Quorum, tmp_path: Path) -> None:
    """Clients try again after an unknown outcome: the leader creates no object that its log holds already."""
    create(created, "k2", outcome=3)
    try_again(created, "k2")
    assert explained(created, tmp_path / "once").validity is Validity.VALID
    add_entry(created)
    verdict = explained(created, tmp_path / "twice")
    assert verdict.validity is Validity.INVALID
    assert "at most 3 objects may have been created" in verdict.witnesses[0].summary


def try_again(quorum: Quorum, key: str) -> None:
    """A create that is answered, and leaves no entry."""
    process, quorum._process = quorum._process, quorum._process + 1
    for type_ in (0, 1):
        quorum._event(process, type_, key, None, "n1", "create")


def test_a_second_leader_change_or_topic_is_found_in_a_whole_history(created: Quorum, tmp_path: Path) -> None:
    add_entry(created)
    [witness] = explained(created, tmp_path / "whole").witnesses
    assert (witness.kind, witness.facts["offset"]) == ("entry without a cause", 6)
    assert witness.rows[0]["key"] is None and witness.facts["why"] and witness.facts["expected"]
    verdict = created.evidence().judge(tmp_path / "short", SYSTEM)[SYSTEM]
    assert verdict.validity is Validity.UNKNOWN
    assert "no create in the history explains 1 entries of a log, and the history lacks its end" in verdict.reason


def test_an_epoch_that_begins_with_a_clients_write_is_found(created: Quorum, tmp_path: Path) -> None:
    evidence = created.evidence()
    for rows in evidence.logs.values():
        first = next(row for row in rows if row["epoch"] == 2)
        first |= {"key": "k0", "value": 77}
    verdict = evidence.ended().judge(tmp_path, SYSTEM)[SYSTEM]
    assert [w.kind for w in verdict.witnesses] == ["epoch without its opening entry"]
    assert verdict.witnesses[0].facts["epoch"] == 2


def test_the_first_entry_of_a_log_that_begins_above_zero_is_not_judged(created: Quorum, tmp_path: Path) -> None:
    evidence = created.evidence()
    for rows in evidence.logs.values():
        rows[:] = [row for row in rows if row["offset"] >= 3]
    assert evidence.ended().judge(tmp_path, SYSTEM)[SYSTEM].validity is Validity.VALID


def test_only_the_bundled_kraft_must_take_the_steps_of_kraft() -> None:
    of_kraft = {"trace-validation", SYSTEM}
    offered = {"history", "logs", "traces", "nodes", "unique-values", "client-records"}
    assert not of_kraft & {checker.name for checker in select(offered)}  # type: ignore[arg-type]
    assert of_kraft <= {checker.name for checker in select({*offered, "kraft-steps"})}  # type: ignore[arg-type]
