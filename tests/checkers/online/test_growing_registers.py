"""Registers that are judged while their history grows, and whole keys so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from every_order import some_order_fits
from histories import Script, as_operations, by_construction, tiny
from small_domain import Op, as_events, key_of, nonsense

from checkers.base.columns import HISTORY, MalformedHistory, events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.kernels import register_unique_values as register
from checkers.online import Alarm, OnlineKeys, judge_prefix


def batches(rng: Random, events: Sequence[Event], most: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of successive batches of 1 to `most` events."""
    begin = 0
    while begin < len(events):
        end = min(len(events), begin + rng.randint(1, most))
        yield begin, end
        begin = end


def wrong_keys(events: Sequence[Event]) -> set[str]:
    """Keys of a history that the kernel finds wrong, all events at once."""
    names = sorted({e.key for e in events if e.key is not None})
    code, _, _, _ = register.judge_keys(as_operations(events), 10**12)
    return {names[k] for k in np.flatnonzero(code >= register.FIRST_INVALID)}


def same_at_every_moment(rng: Random, events: Sequence[Event], most: int) -> set[str]:
    """Feed batch by batch; after each, the keys alarmed so far are those found wrong in the whole prefix."""
    online, alarmed = OnlineKeys(), set()
    for begin, end in batches(rng, events, most):
        alarmed |= {alarm.key for alarm in online.take(events_to_table(events[begin:end]))}
        assert alarmed == wrong_keys(events[:end]), f"after event {end} of {events}"
    return alarmed


@pytest.mark.parametrize("most", [1, 3, 9])
def test_after_every_batch_of_a_tiny_history_online_says_what_the_whole_prefix_says(most: int) -> None:
    found = 0
    for seed in range(100):
        rng = Random(f"{most}/{seed}")
        found += len(same_at_every_moment(rng, tiny(rng, rng.randint(2, 14), rng.randint(1, 5)), most))
    assert 10 < found < 90


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(40))
def test_after_every_batch_of_many_tiny_histories(part: int, night: Random) -> None:
    for _ in range(1000):
        rng = Random(night.getrandbits(64))
        same_at_every_moment(rng, tiny(rng, rng.randint(2, 30), rng.randint(1, 6)), rng.randint(1, 12))


@pytest.mark.parametrize(("crash", "cas"), [(0.0, 0.0), (0.01, 0.0), (0.05, 0.3)])
def test_a_correct_history_never_raises_an_alarm_and_is_forgotten_as_it_goes(crash: float, cas: float) -> None:
    rng = Random(f"{crash}/{cas}")
    events = list(by_construction(rng, 6000, keys=4, cas=cas, crash=crash))
    online, most = OnlineKeys(), 0
    given_up = 0
    for begin, end in batches(rng, events, 300):
        assert online.take(events_to_table(events[begin:end])) == []
        given_up += sum(e.type is Type.INFO for e in events[begin:end])
        most = max(most, online.kept - 2 * given_up)
    assert online.judged == sum(e.type is not Type.INVOKE for e in events)
    assert cas > 0.2 or most < 150


@pytest.mark.parametrize("seed", range(12))
def test_an_answer_falsified_in_a_long_history_is_found_in_its_own_batch(seed: int) -> None:
    """Even a value that was overwritten thousands of events ago, and forgotten, comes back as a violation."""
    rng = Random(seed)
    events = list(by_construction(rng, 3000, keys=3, cas=0.0, crash=0.004))
    written = [e for e in events if e.type is Type.OK and e.f == "write"]
    reads = [e for e in events if e.type is Type.OK and e.f == "read" and e.index > 1500]
    victim = rng.choice(reads)
    stale = rng.choice([w.value for w in written if w.key == victim.key and w.index < 900])
    events[victim.index] = replace(victim, value=stale)
    assert wrong_keys(events) == {victim.key}
    assert same_moment(rng, events, victim) == victim.key


def same_moment(rng: Random, events: Sequence[Event], victim: Event) -> str:
    online = OnlineKeys()
    for begin, end in batches(rng, events, 200):
        for alarm in online.take(events_to_table(events[begin:end])):
            assert begin <= victim.index < end
            return alarm.key
    raise AssertionError("no alarm was raised")


def test_a_write_given_up_and_set_aside_counts_again_once_a_read_sees_it() -> None:
    script = Script().invoke(0, "write", 1).info(0)
    for value in range(2, 30):
        script.invoke(1, "write", value).ok(1).invoke(2, "read").ok(2, value)
    script.invoke(2, "read").ok(2, 1).invoke(2, "read").ok(2, 29)
    online = OnlineKeys()
    for begin in range(0, len(script.events) - 2, 4):
        assert online.take(events_to_table(script.events[begin : min(begin + 4, len(script.events) - 2)])) == []
    assert online.take(events_to_table(script.events[-2:])) == [Alarm("k", "not linearizable")]


def test_a_key_whose_values_repeat_is_judged_whole_as_it_grows() -> None:
    script = Script()
    for value in (1, 2, 1, 2):
        script.invoke(0, "write", value).ok(0)
    online = OnlineKeys()
    assert online.take(events_to_table(script.events[:4])) == []
    assert online.take(events_to_table(script.events[4:])) == [Alarm("k", "values repeat")]
    assert online.kept == 0


def test_a_closed_key_and_one_that_is_no_register_are_left_to_the_sealed_run() -> None:
    stale = Script("bad").invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, None).invoke(1, "read").ok(1, None).events
    online = OnlineKeys()
    assert online.take(events_to_table(stale[:4])) == [Alarm("bad", "not linearizable")]
    online.close("bad")
    assert online.take(events_to_table(stale[4:])) == []
    queue = Script("q").invoke(0, "enqueue", 1).ok(0).events
    assert online.take(events_to_table(queue)) == []
    assert (online.keys, online.kept) == (2, 0)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_a_key_that_contradicts_itself_is_not_judged_as_in_the_sealed_run(batch: int) -> None:
    script = Script("odd").invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, None).invoke(1, "read").ok(1, None)
    events = script.events
    events[1] = replace(events[1], value=4)
    online = OnlineKeys()
    for begin in range(0, len(events), batch):
        assert online.take(events_to_table(events[begin : begin + batch])) == []
    assert online.unfit == {"odd"}
    assert online.kept == 0


def test_a_key_that_is_judged_no_more_is_still_held_against_its_invokes() -> None:
    stale = Script("bad").invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, None).invoke(0, "write", 2).ok(0).events
    online = OnlineKeys()
    assert online.take(events_to_table(stale[:4])) == [Alarm("bad", "not linearizable")]
    online.close("bad")
    online.take(events_to_table(stale[4:5]))
    online.take(events_to_table([replace(stale[5], value=3)]))
    assert online.unfit == {"bad"}


# Keys of an unsealed run judged whole


def prefix(folder: Path, events: Sequence[Event], keys: Sequence[str], tail: bytes = b"") -> Verdict:
    """The verdict on what a stream holds so far; tail: of a batch that is being written."""
    path = folder / "history.arrows"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, HISTORY) as stream:
        for event in events:
            stream.write_table(events_to_table([event]))
    data = path.read_bytes()[:-8]  # without the end mark of the stream
    path.write_bytes(data + tail)
    return judge_prefix(path, keys)


def fits(operations: Sequence[Op], length: int) -> bool:
    """Brute force: whether some order explains the first `length` events."""
    cut = [
        Op(o.f, o.value, o.made, o.call, o.ret if o.ret is not None and o.ret < length else None)
        for o in operations
        if o.call < length
    ]
    cut = [o for o in cut if o.f not in ("read", "mismatch") or o.ret is not None]
    key, _ = key_of(cut)
    return bool(some_order_fits(*key)) if len(key.kind) else True


@pytest.mark.parametrize("seed", range(16))
def test_a_prefix_is_invalid_exactly_where_brute_force_finds_no_order(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    operations = [o for o in nonsense(rng, rng.randint(2, 6), 3, 3) if o.f != "mismatch"]
    # positions without gaps, so that each is an index of the history
    points = sorted({o.call for o in operations} | {o.ret for o in operations if o.ret is not None})
    at = {point: index for index, point in enumerate(points)}
    operations = [Op(o.f, o.value, o.made, at[o.call], None if o.ret is None else at[o.ret]) for o in operations]
    events = as_events(operations, "k")
    for length in range(1, len(events) + 1):
        verdict = prefix(tmp_path, events[:length], ["k"])
        assert (verdict.validity is Validity.INVALID) == (not fits(operations, length)), (events, length)
        if verdict.validity is Validity.VALID:
            assert any(e.type is Type.OK for e in events[:length])


def test_only_the_keys_that_were_named_are_judged(tmp_path: Path) -> None:
    bad = Script("bad").invoke(0, "read").ok(0, 7).events
    assert prefix(tmp_path, bad, ["other"]).validity is not Validity.INVALID
    assert prefix(tmp_path, bad, ["bad"]).validity is Validity.INVALID


def test_a_batch_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    events = Script("k").invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, 1).events
    torn = prefix(tmp_path, events, ["k"], np.arange(40, dtype=np.uint8).tobytes())
    assert torn.validity is Validity.VALID


def test_nothing_to_read_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory):
        judge_prefix(tmp_path / "history.arrows", ["k"])


def test_a_lost_write_is_called_a_stale_read_while_the_run_goes_on(tmp_path: Path) -> None:
    script = Script("k").invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0)
    script.invoke(1, "read").ok(1, 1).invoke(1, "read").ok(1, 1)
    [witness] = prefix(tmp_path, script.events, ["k"]).witnesses
    assert witness.kind == "stale read"
    assert "guilty" not in witness.facts
