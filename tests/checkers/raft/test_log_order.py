"""What logs settle, against brute force over all outcomes and orders that agree with the log; and when they may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run
from checkers.raft.log_order import LOG_ORDER, order_clashes
from checkers.sealing.sealed_history import history_tables

NAME = "log-order"
OPEN = 1 << 62


@dataclass(frozen=True)
class Op:
    """A write of `value`, or a read that returned it (None for nil).  completed: None if it never returned."""

    f: str
    value: int | None
    invoked: int
    completed: int | None


def random_history(random: Random) -> list[Op]:
    """Up to six operations on one key, some of the writes without an answer."""
    count = random.randrange(2, 7)
    moments = list(range(2 * count))
    random.shuffle(moments)
    ops = []
    written: list[int] = []
    for n in range(count):
        call, ret = sorted(moments[2 * n : 2 * n + 2])
        if random.random() < 0.5:
            written.append(n + 1)
            ops.append(Op("write", n + 1, call, None if random.random() < 0.4 else ret))
        else:
            ops.append(Op("read", random.choice([None, *range(1, count + 1)]), call, ret))
    return [op for op in ops if op.f == "write" or op.value in (None, *written)]


def random_log(ops: Sequence[Op], random: Random) -> list[int]:
    """Every acknowledged write and some others, often in order of invoke."""
    kept = [op for op in ops if op.f == "write" and (op.completed is not None or random.random() < 0.5)]
    kept.sort(key=lambda op: op.invoked + random.choice([0, 0, random.randrange(-6, 7)]))
    return [op.value for op in kept if op.value is not None]


def some_order_fits(ops: Sequence[Op], log: Sequence[int]) -> bool:
    """Whether an order explains all answers: of what returned and of the writes in the log, in the order of the log."""
    happened = [op for op in ops if op.completed is not None or op.value in log]
    for order in permutations(happened):
        writes = [op.value for op in order if op.f == "write"]
        if writes == list(log) and _respects_real_time(order) and _answers_right(order):
            return True
    return False


def _respects_real_time(order: Sequence[Op]) -> bool:
    ends = [OPEN if op.completed is None else op.completed for op in order]
    return not any(ends[j] < order[i].invoked for i in range(len(order)) for j in range(i + 1, len(order)))


def _answers_right(order: Sequence[Op]) -> bool:
    held = None
    for op in order:
        if op.f == "write":
            held = op.value
        elif op.value != held:
            return False
    return True


def disagreements(seeds: Iterable[int]) -> tuple[list[int], int]:
    """The seeds whose history fits by brute force and not by the rule, or the other way round; and how many fit.

    Each history is one key."""
    fits: dict[str, bool] = {}
    rows, entries = [], []
    for seed in seeds:
        random = Random(seed)
        ops = random_history(random)
        log = random_log(ops, random)
        fits[str(seed)] = some_order_fits(ops, log)
        rows += [(str(seed), op.f == "read", op.value, op.invoked, op.completed) for op in ops]
        entries += [(str(seed), value, offset) for offset, value in enumerate(log)]
    with history_tables(HISTORY.empty_table()) as sql:
        ops_table = pa.table(list(zip(*rows, strict=True)), ["key", "reads", "value", "invoked", "completed"])
        sql.register("ops", ops_table)
        sql.register("entries", pa.table(list(zip(*entries, strict=True)), ["key", "value", "offset"]))
        wrong = {clash.key for clash in order_clashes(sql)}
    return [int(seed) for seed, fit in fits.items() if fit is (seed in wrong)], sum(fits.values())


def test_the_rule_is_the_search_over_all_outcomes_and_orders_that_agree_with_the_log() -> None:
    different, fitting = disagreements(range(1500))
    assert different == []
    assert 200 < fitting < 1300


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_the_rule_is_the_search_for_many_histories(part: int, night: Random) -> None:
    assert disagreements(night.randrange(1 << 40) for _ in range(5000))[0] == []


def test_offsets_of_a_clash_are_those_of_its_two_operations() -> None:
    """A read of nil has no offset.  The write of 1, which stands between it and the write of 2, is not part of it."""
    rows = [("k", False, 1, 0, None), ("k", False, 2, 1, 2), ("k", True, None, 3, 4)]
    with history_tables(HISTORY.empty_table()) as sql:
        sql.register("ops", pa.table(list(zip(*rows, strict=True)), ["key", "reads", "value", "invoked", "completed"]))
        sql.register("entries", pa.table({"key": ["k", "k"], "value": [1, 2], "offset": [0, 1]}))
        (clash,) = order_clashes(sql)
    assert (clash.operations, clash.offsets) == ((3, 1), (1,))


# Whole runs.


@pytest.fixture
def quorum() -> Quorum:
    """n1 is cut off and leaves the write of 2 without an answer and in no log that stays; 3 is committed by n2.
    The write of 4 gets no answer, and is committed after all."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.cut({"n1"})
    quorum.write()
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    quorum.write()
    quorum.heal()
    quorum.write(replicate=False)
    quorum.replicate()
    return quorum


def read(quorum: Quorum, value: int | None, process: int = 99) -> None:
    for type_ in (Type.INVOKE, Type.OK):
        quorum._event(process, int(type_), "k0", value if type_ == Type.OK else None, "n1", "read")


def judged(evidence: Evidence, folder: Path) -> Verdict:
    run = evidence.write(folder)
    return judge_run(run, [LOG_ORDER])[NAME]


def test_the_verdict_names_what_the_logs_settled(quorum: Quorum, tmp_path: Path) -> None:
    read(quorum, 4)
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at == {
        "keys": 1,
        "reads": 1,
        "writes of unknown outcome": 2,
        "unknown writes found in the log": 1,
        "unknown writes not in the log": 1,
        "left open": 0,
    }


def test_a_read_of_a_write_that_never_happened(quorum: Quorum, tmp_path: Path) -> None:
    """Clients cannot know: to them the write of 2 may have taken effect after the write of 4, and before this read."""
    read(quorum, 2)
    evidence = quorum.evidence()
    verdict = judged(evidence, tmp_path)
    assert [w.kind for w in verdict.witnesses] == ["read of a write that never happened"]
    witness = verdict.witnesses[0]
    assert (witness.facts["key"], witness.facts["value"]) == ("k0", 2)
    assert {event["value"] for event in witness.events} == {None, 2}
    assert "no log contains the write of this value" in witness.summary


def test_a_stale_read_that_an_unanswered_write_would_excuse(quorum: Quorum, tmp_path: Path) -> None:
    """Clients cannot know whether the write of 4 came between the two reads.  The log knows that 3 came before it."""
    read(quorum, 4, process=98)
    read(quorum, 3)
    verdict = judged(quorum.evidence(), tmp_path)
    assert [w.kind for w in verdict.witnesses] == ["answer against the order of the log"]
    assert [row["value"] for row in verdict.witnesses[0].rows] == [3, 4]
    assert verdict.witnesses[0].facts["why"] and verdict.witnesses[0].facts["expected"]


def test_a_read_of_nil_after_a_write(quorum: Quorum, tmp_path: Path) -> None:
    read(quorum, None)
    assert judged(quorum.evidence(), tmp_path).validity is Validity.INVALID


def without_a_final_copy(evidence: Evidence) -> None:
    last = max(copy["copy"] for copy in evidence.copies)
    evidence.copies = [c for c in evidence.copies if (c["copy"], c["node"]) != (last, "n3")]


def without_a_log_that_caught_up(evidence: Evidence) -> None:
    last = max(copy["copy"] for copy in evidence.copies)
    for rows in evidence.logs.values():
        final = [row for row in rows if row["copy"] == last]
        rows[:] = [row for row in rows if row not in final[-1:]]


def with_logs_that_begin_above_zero(evidence: Evidence) -> None:
    for rows in evidence.logs.values():
        rows[:] = [row for row in rows if row["offset"] > 0]


def without_an_acknowledged_write(evidence: Evidence) -> None:
    for rows in evidence.logs.values():
        for row in rows:
            if row["value"] == 1:
                row["key"] = row["value"] = None


def with_repeated_values(evidence: Evidence) -> None:
    for event in evidence.history:
        if event["f"] == "write" and event["value"] == 3:
            event["value"] = 4


def with_an_unreadable_copy(evidence: Evidence) -> None:
    for copy in evidence.copies:
        if copy["when"] == "final" and copy["node"] == "n3":
            copy["error"] = "damaged at byte 12"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_a_final_copy, "n3: there is no final copy"),
        (without_a_log_that_caught_up, "no node's final log had caught up"),
        (with_logs_that_begin_above_zero, "no node's final log had caught up"),
        (without_an_acknowledged_write, "lacks an acknowledged write"),
        (with_repeated_values, "share their key and value"),
        (with_an_unreadable_copy, "copy 1 of n3 is unreadable"),
    ],
)
def test_logs_that_settle_nothing_leave_the_verdict_unknown(
    quorum: Quorum, tmp_path: Path, damage: Callable[[Evidence], None], words: str
) -> None:
    read(quorum, 4)
    evidence = quorum.evidence()
    damage(evidence)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert words in verdict.reason


def test_the_trailing_log_of_a_wiped_node_settles_nothing_and_the_others_do(quorum: Quorum, tmp_path: Path) -> None:
    read(quorum, 4)
    evidence = quorum.evidence()
    last = max(copy["copy"] for copy in evidence.copies)
    for name in ("n1", "n3"):
        evidence.logs[name] = [row for row in evidence.logs[name] if row["copy"] != last or row["offset"] < 1]
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at["unknown writes found in the log"] == 1


@pytest.mark.parametrize("reported", [True, False])
def test_a_disk_that_a_fault_damaged_settles_nothing_and_its_nodes_marks_still_count(
    quorum: Quorum, tmp_path: Path, reported: bool
) -> None:
    read(quorum, 4)
    evidence = quorum.evidence()
    began_ns = max(fault["heal_ordered_ns"] for fault in evidence.faults) + 1
    times = {"injected_ns": began_ns, "heal_ordered_ns": began_ns + 2, "healed_ns": began_ns + 2}
    damage = {"nodes": ["n3"], "settings": {"damages_data": True}, "card": {"number": 7, "kind": "damage"}}
    evidence.faults.append({"cut": [], "leader": None, **times, **damage})
    evidence.logs["n3"] = []
    with_an_unreadable_copy(evidence)
    if reported:
        mark = next(row for row in reversed(evidence.traces["n3"]) if row["event"] == "high-watermark")
        mark |= {"offset": mark["offset"] + 1, "hash": None}
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is (Validity.UNKNOWN if reported else Validity.VALID)
    assert ("caught up" in verdict.reason) is reported


def test_it_does_not_apply_where_clients_do_more_than_read_and_write(quorum: Quorum, tmp_path: Path) -> None:
    evidence = quorum.evidence()
    evidence.demands = replace(evidence.demands, writes=frozenset({"write", "cas"}))
    assert judged(evidence, tmp_path).validity is Validity.NOT_APPLICABLE


def test_an_entry_above_the_largest_mark_leaves_its_write_open(quorum: Quorum, tmp_path: Path) -> None:
    quorum.write(replicate=False)
    read(quorum, 4)
    evidence = quorum.evidence()
    copied: Row = {}
    for row in evidence.logs["n2"]:
        copied = row if row["value"] == 5 else copied
    assert copied, "n2 leads, and holds the entry alone"
    evidence.logs = {"n2": evidence.logs["n2"], **{n: rows for n, rows in evidence.logs.items() if n != "n2"}}
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at["left open"] == 1
