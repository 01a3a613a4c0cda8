"""Every model by hand: against the independent search on random histories, and each rule of it by an example."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, one_process, renumbered, searched

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.independent_search import SearchExhausted
from checkers.base.values import SHORT, frozen
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.models import past as model_past
from checkers.models import search as model_search
from checkers.models.each_object import KNOWN
from checkers.models.model import REFUSED, Model, Operation, operations_of, value_of
from checkers.models.objects.counter import COUNTER
from checkers.models.objects.kv import KV
from checkers.models.objects.mutex import MUTEX
from checkers.models.objects.queue import QUEUE
from checkers.models.objects.registers import CAS_REGISTER
from checkers.models.search import judge_object


def kv_do(state: str, f: str, value: Any) -> tuple[str, Any]:
    return {"get": (state, state or None), "put": (value, value), "append": (state + (value or ""), value)}[f]


def queue_do(state: tuple, f: str, value: Any) -> tuple[tuple, Any]:
    if f == "enqueue":
        return (*state, value), value
    return (state[1:], state[0]) if state else (state, None)


def mutex_do(state: str, f: str, value: Any) -> tuple[str, Any] | None:
    if f == "acquire":
        return None if state == "held" else ("held", None)
    return ("free", None)


def fresh(rng: Random) -> int:
    return rng.randrange(6)


class Locks:
    """Each process acquires and releases in turn."""

    def __init__(self) -> None:
        self.holds: set[int] = set()

    def __call__(self, rng: Random, process: int) -> tuple[str, Any]:
        f = "release" if process in self.holds else "acquire"
        self.holds ^= {process}
        return f, None


def set_step(state: frozenset, operation: Operation) -> object:
    if operation.f == "add":
        return state | {operation.input}
    return state if state == frozenset(operation.output or ()) else REFUSED  # type: ignore[arg-type]


def log_step(state: tuple, operation: Operation) -> object:
    if operation.f == "append":
        offset = operation.output[1] if isinstance(operation.output, tuple) else len(state)
        if offset < len(state):
            return REFUSED
        return (*state, *["left out"] * (offset - len(state)), operation.input)
    return state if state == (operation.output or ()) else REFUSED


def some_of(rng: Random, f: str, was: Any) -> Any:
    if f != "read":
        return was
    return [x for x in was or () if rng.random() < 0.8]


def lie_of_log(rng: Random, f: str, was: Any) -> Any:
    if f == "read":
        return list(was or ())[: rng.randrange(5)]
    return [was[0], rng.randrange(5)] if isinstance(was, tuple) and rng.random() < 0.5 else was


SIMULATED = {
    "kv": (
        Simulated(
            "",
            lambda rng, _: rng.choice([("get", None), ("append", rng.choice("abc")), ("put", rng.choice("xy"))]),
            kv_do,
            lambda rng, f, was: rng.choice(["a", "ab", "x", "xa", None]) if f == "get" else was,
        ),
        ("", KV.step, {"get"}),
    ),
    "queue": (
        Simulated(
            (),
            lambda rng, _: rng.choice([("enqueue", fresh(rng)), ("dequeue", None)]),
            queue_do,
            lambda rng, f, was: rng.choice([fresh(rng), None]) if f == "dequeue" else was,
        ),
        ((), QUEUE.step, set()),
    ),
    "counter": (
        Simulated(
            0,
            lambda rng, _: rng.choice([("add", rng.choice([1, 2, -1])), ("read", None), ("dec", 1)]),
            lambda state, f, value: (
                (state, state) if f == "read" else (state + (value if f == "add" else -value), value)
            ),
            lambda rng, f, was: was + rng.choice([-1, 1]) if f == "read" else was,
        ),
        (0, COUNTER.step, {"read"}),
    ),
    "set": (
        Simulated(
            frozenset(),
            lambda rng, _: rng.choice([("add", fresh(rng)), ("read", None)]),
            lambda state, f, value: (state, sorted(state)) if f == "read" else (state | {value}, value),
            some_of,
        ),
        (frozenset(), set_step, {"read"}),
    ),
    "append-log": (
        Simulated(
            (),
            lambda rng, _: rng.choice([("append", rng.randrange(10**6)), ("read", None)]),
            lambda state, f, value: (state, list(state)) if f == "read" else ((*state, value), [value, len(state)]),
            lie_of_log,
        ),
        ((), log_step, {"read"}),
    ),
}


@pytest.mark.parametrize("name", [*SIMULATED, "mutex"])
def test_a_model_agrees_with_the_independent_search(name: str) -> None:
    agrees(name, Random(name), 80 if name == "queue" else 250)  # whose search takes 10 times as long


@pytest.mark.parametrize("name", [*SIMULATED, "mutex"])
def test_a_model_agrees_with_the_independent_search_on_longer_histories(name: str) -> None:
    cases, largest = (6, 60) if name == "queue" else (30, 80)  # models whose search takes 40 times as long
    agrees(name, Random(name), cases, sizes=(30, largest), crashes=(0, 0.02))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", [*SIMULATED, "mutex"])
def test_a_model_agrees_with_the_independent_search_all_night(name: str, part: int, night: Random) -> None:
    agrees(name, night, 25_000)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(
    ("name", "cases", "largest"),
    [*((name, 5_000, 200) for name in (*SIMULATED, "mutex") if name != "queue"), ("queue", 200, 60)],
)
def test_a_model_agrees_with_the_independent_search_on_longer_histories_all_night(
    name: str, cases: int, largest: int, part: int, night: Random
) -> None:
    agrees(name, night, cases, sizes=(30, largest), crashes=(0, 0.01))


def agrees(
    name: str, rng: Random, cases: int, sizes: tuple[int, int] = (2, 12), crashes: tuple[float, ...] = (0, 0, 0.15)
) -> None:
    """Histories whose answers are those of the object, or a few of them changed.

    A queue whose values repeat may be beyond both searches; nothing else is.
    """
    seen = {True: 0, False: 0, "not decided": 0}
    for _ in range(cases):
        lies, crash = rng.choice([0, 1, 2]), rng.choice(crashes)
        if name == "mutex":
            locks = Simulated("free", Locks(), mutex_do, lambda rng, f, was: was)
            events = mixed_up(history(locks, rng, rng.randint(*sizes), 3, 0, 0), rng, lies)
            init, step, observers = "free", MUTEX.step, set[str]()
        else:
            what, (init, step, observers) = SIMULATED[name]
            events = history(what, rng, rng.randint(*sizes), rng.randint(1, 4), crash, lies)
        looks = KNOWN[name].observers
        if not any(e.type is Type.OK and (e.f in looks or not looks) for e in events):
            continue  # no operation was answered, or none that reads the object: unknown
        verdict = judge_events(events, name)
        try:
            expected = searched(events, init, step, observers)
        except SearchExhausted:
            expected = None
        if expected is None or verdict.validity is Validity.UNKNOWN:
            assert name == "queue", verdict.reason
            seen["not decided"] += 1
            continue
        assert (verdict.validity is Validity.VALID) == expected, events
        if lies == 0:
            assert expected or name == "mutex"
        seen[expected] += 1
    assert min(seen[True], seen[False]) > cases / 20, seen
    assert seen["not decided"] < cases / 5, seen


def mixed_up(events: list[Event], rng: Random, times: int) -> list[Event]:
    """Move some completions of a lock's history earlier: an early completion claims to hold it."""
    for _ in range(2 * times):
        oks = [at for at, e in enumerate(events) if e.type is Type.OK]
        if not oks:
            break
        at = rng.choice(oks)
        begun = max(i for i in range(at) if events[i].process == events[at].process)
        to = rng.randint(begun + 1, at)
        events.insert(to, events.pop(at))
    return [replace(e, index=index) for index, e in enumerate(events)]


def test_the_table_and_the_plain_search_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(12)
    for _ in range(60):
        what, (init, step, observers) = SIMULATED["kv"]
        events = history(what, rng, rng.randint(4, 14), 4, 0.1, rng.choice([0, 1, 2]))
        expected = searched(events, init, step, observers)
        for first, most, steps in ((50, 2_000_000, 10_000), (0, 2_000_000, 0), (0, 0, 0), (0, 0, 10_000)):
            monkeypatch.setattr(model_search, "ENTRIES_FIRST_PER_OPERATION", first)
            monkeypatch.setattr(model_search, "ENTRIES_MAX", most)
            monkeypatch.setattr(model_search, "STEPS_FIRST", steps)
            monkeypatch.setattr(model_search, "STEPS_FIRST_PER_OPERATION", 0)
            answer = judge_object(KV, operations_of(events), Budget())
            assert answer.linearizable is expected


def test_a_model_whose_state_only_grows_is_decided_or_given_up_within_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An enumeration of all its states, without regard to the history, would never end and would fill the memory."""

    def step(state: Any, operation: Operation) -> Any:
        if operation.f == "append":
            return (*state, operation.input)
        return state if state == (operation.output or ()) else REFUSED

    growing = Model("growing", init=tuple, step=step, observers=frozenset({"read"}))
    appended = [("append", 0, 0)] * 2000
    right, wrong = (one_process(*appended, ("read", None, [0] * n)) for n in (2000, 1999))
    assert judge_events(right, growing).validity is Validity.VALID
    for size_bytes in (model_past.SIZE_BYTES_MAX, 100_000):
        monkeypatch.setattr(model_past, "SIZE_BYTES_MAX", size_bytes)
        [witness] = judge_events(wrong, growing).witnesses
        assert [row["index"] for row in witness.events] == [4000, 4001], "older moments may be forgotten, not these"
    tight = judge_events(right, growing, Budget(size_bytes=10_000))
    assert (tight.validity, tight.reason) == (Validity.UNKNOWN, "the budget of 10000 bytes ran out")


def test_a_register_as_a_model_agrees_with_the_register_kernels() -> None:
    rng = Random(4)
    what = Simulated(
        None,
        lambda rng, _: rng.choice([("read", None), ("write", rng.randrange(3))]),
        lambda state, f, value: (state, state) if f == "read" else (value, value),
        lambda rng, f, was: rng.choice([0, 1, 2, None]) if f == "read" else was,
    )
    for _ in range(100):
        events = history(what, rng, rng.randint(2, 15), 4, 0.1, rng.choice([0, 1]))
        assert judge_events(events, CAS_REGISTER).validity is judge_events(events, "register").validity


def kinds(events: list[Event], model: str | Model) -> list[str]:
    return [w.kind for w in judge_events(events, model).witnesses]


@pytest.mark.parametrize(
    ("name", "write", "read", "reason"),
    [
        ("set", ("add", 1, 1), "read", "no read was answered"),
        ("counter", ("inc", None, None), "read", "no read was answered"),
        ("append-log", ("append", 1, [1, 0]), "read", "no read was answered"),
        ("kv", ("put", "a", "a"), "get", "no get was answered"),
        ("queue", ("enqueue", 1, 1), "dequeue", "no dequeue or drain was answered"),
    ],
)
def test_writes_are_judged_only_if_some_answer_shows_what_became_of_them(
    name: str, write: tuple[str, Any, Any], read: str, reason: str
) -> None:
    written = one_process(write)
    for end in (Type.FAIL, Type.INFO):
        lost = [event(2, 1, Type.INVOKE, read, None), event(3, 1, end, read, None)]
        verdict = judge_events([*written, *lost], name)
        assert verdict.validity is Validity.UNKNOWN
        assert verdict.reason == f"{reason}, so nothing shows what became of 1 acknowledged operation"
    keyed = [replace(e, key="a") for e in written]
    answer = {"set": [], "counter": 0, "append-log": [], "kv": ""}.get(name)
    looked = [event(2, 1, Type.INVOKE, read, None), event(3, 1, Type.OK, read, answer)]
    other = judge_events([*keyed, *(replace(e, key="b") for e in looked)], name)
    assert other.validity is Validity.UNKNOWN, "another object was read"
    assert other.reason.startswith(reason.replace(" was answered", " of a was answered"))
    before = [replace(e, key="a", index=n) for n, e in enumerate([*looked, *written])]
    assert judge_events(before, name).validity is Validity.VALID, "the same object was read"


def test_locks_and_ids_need_no_reads() -> None:
    for name, step in (("mutex", ("acquire", None, None)), ("unique-ids", ("generate", None, 1))):
        assert judge_events(one_process(step), name).validity is Validity.VALID


def test_fractions_are_named_where_only_whole_numbers_are_judged() -> None:
    fraction = [("add", 1.5, 1.5), ("read", None, 1.5)]
    verdict = judge_events(one_process(*fraction), "counter")
    assert verdict.validity is Validity.UNKNOWN and "inc and dec of whole numbers" in verdict.reason
    fraction = [("insert", 2.5, 2.5), ("extract-min", None, 2.5)]
    verdict = judge_events(one_process(*fraction), "priority-queue")
    assert verdict.validity is Validity.UNKNOWN and "no whole number" in verdict.reason


def test_what_a_set_can_do_wrong() -> None:
    added = [("add", 1, 1), ("add", 2, 2)]
    assert kinds(one_process(*added, ("read", None, [1, 2])), "set") == []
    assert kinds(one_process(*added, ("read", None, [2])), "set") == ["acknowledged element lost"]
    assert kinds(one_process(*added, ("read", None, [2]), ("read", None, [1, 2])), "set") == ["stale read"]
    assert kinds(one_process(*added, ("read", None, [1, 1, 2])), "set") == ["duplicate"]
    assert kinds(one_process(("read", None, [7])), "set") == ["value from nowhere"]
    late = judge_events(one_process(*added, ("read", None, [1, 2]), ("add", 3, 3)), "set")
    assert late.validity is Validity.VALID, "no read began after the last add"
    assert (late.looked_at["acknowledged"], late.looked_at["never_read"]) == (3, 1)
    verdict = judge_events(one_process(("remove", 1, 1)), "set")
    assert verdict.validity is Validity.UNKNOWN
    assert "remove is not an operation of a set" in verdict.reason


@pytest.mark.parametrize(
    ("name", "write", "read", "answer"),
    [
        ("set", ("add", 1), "read", [1]),
        ("queue", ("enqueue", 1), "dequeue", 1),
        ("append-log", ("append", 1), "read", [1]),
        ("long-fork", ("txn", [["w", "x", 1]]), "txn", [["r", "x", 1], ["r", "y", None]]),
    ],
)
@pytest.mark.parametrize("retried", [False, True])
def test_a_value_whose_write_failed_comes_from_nowhere_and_no_sentence_denies_the_failed_write(
    name: str, write: tuple[str, Any], read: str, answer: Any, retried: bool
) -> None:
    f, value = write
    asked = [["r", "x", None], ["r", "y", None]] if name == "long-fork" else None
    events = one_process((f, value, value), (read, asked, answer), *([(f, value, value)] * retried))
    events[1] = replace(events[1], type=Type.FAIL)
    [witness] = judge_events(events, name).witnesses
    assert witness.kind == "value from nowhere"
    said = [witness.summary, *witness.facts["why"]]
    assert not any("ever invoked" in each or "no transaction wrote" in each for each in said)
    assert any("failed" in each or "may have happened" in each for each in said), said


def test_what_a_queue_can_do_wrong() -> None:
    put = [("enqueue", 1, 1), ("enqueue", 2, 2)]
    assert kinds(one_process(*put, ("dequeue", None, 1), ("dequeue", None, 2), ("dequeue", None, None)), "queue") == []
    assert kinds(one_process(*put, ("dequeue", None, 2)), "queue") == ["out of order"]
    assert kinds(one_process(*put, ("dequeue", None, None)), "queue") == ["not empty"]
    assert kinds(one_process(*put, put[0], ("dequeue", None, 2)), "queue") == ["no order"]
    assert kinds(one_process(*put, ("dequeue", None, 1), ("dequeue", None, 1)), "queue") == ["duplicate"]
    assert kinds(one_process(*put, ("dequeue", None, 3)), "queue") == ["value from nowhere"]
    assert kinds(one_process(*put, ("drain", None, [1])), "queue") == ["acknowledged element lost"]


def test_what_a_counter_can_do_wrong() -> None:
    assert kinds(one_process(("add", 5, 5), ("dec", 2, 2), ("read", None, 3)), "counter") == []
    assert kinds(one_process(("add", 5, 5), ("read", None, 4)), "counter") == ["impossible sum"]
    back = [event(0, 0, Type.INVOKE, "add", 1)]
    back += [replace(e, index=e.index + 1, process=1) for e in one_process(("read", None, 1), ("read", None, 0))]
    assert kinds(back, "counter") == ["no order"]


def test_what_a_lock_can_do_wrong() -> None:
    free = [("acquire", None, None), ("release", None, None)]
    assert kinds(one_process(*free, *free), "mutex") == []
    twice = one_process(("acquire", None, None))
    twice += [replace(e, index=e.index + 2, process=1) for e in twice]
    assert kinds(twice, "mutex") == ["held twice"]
    assert kinds(one_process(("release", None, None)), "mutex") == ["no order"]


def test_a_release_that_was_never_answered_may_have_happened_and_an_acquire_need_not() -> None:
    def step(process: int, type_: Type, f: str) -> Event:
        return event(0, process, type_, f, None)

    held = [step(0, Type.INVOKE, "acquire"), step(0, Type.OK, "acquire"), step(0, Type.INVOKE, "release")]
    taken = [step(1, Type.INVOKE, "acquire"), step(1, Type.OK, "acquire")]
    begun = [step(2, Type.INVOKE, "acquire"), step(2, Type.INFO, "acquire")]
    for events, right in (([*begun, *held, step(0, Type.INFO, "release"), *taken], True), ([*held[:2], *taken], False)):
        numbered = [replace(e, index=index) for index, e in enumerate(events)]
        assert (kinds(numbered, "mutex") == []) == right


def test_an_enqueue_of_nil_is_not_judged() -> None:
    verdict = judge_events(one_process(("enqueue", None, None), ("dequeue", None, None)), "queue")
    assert verdict.validity is Validity.UNKNOWN
    assert "an enqueue of nil looks like an empty queue" in verdict.reason


def test_one_of_many_equal_appends_without_offsets_need_not_have_happened() -> None:
    lost = [event(0, 99, Type.INVOKE, "append", 7), event(0, 99, Type.INFO, "append", 7)]
    for count in (3, 70):
        kept = one_process(*[("append", 7, 7)] * count, ("read", None, [7] * count))
        assert judge_events(renumbered([*lost, *kept]), "append-log").validity is not Validity.INVALID, count


def test_what_a_log_can_do_wrong() -> None:
    appended = [("append", "a", ["a", 0]), ("append", "b", ["b", 1])]
    assert kinds(one_process(*appended, ("read", None, ["a", "b"])), "append-log") == []
    assert kinds(one_process(*appended, ("read", None, ["a"])), "append-log") == ["stale read"]
    assert kinds(one_process(*appended, ("append", "c", ["c", 1])), "append-log") == ["two values at one offset"]
    assert kinds(one_process(("append", "a", ["a", 1]), ("append", "b", ["b", 0])), "append-log") == ["order cycle"]
    assert kinds(one_process(("read", None, ["z"])), "append-log") == ["value from nowhere"]


@pytest.mark.parametrize("offset", [-1, -5, "0", 0.0, True])
def test_an_offset_that_is_no_whole_number_from_0_on_is_refused(offset: Any) -> None:
    placed = ("append", 7, [7, offset])
    for rest in ((), (("append", 8, [8, -2]),), (("read", None, [7]),), (("read", None, []),)):
        verdict = judge_events(one_process(placed, *rest), "append-log")
        assert verdict.validity is Validity.UNKNOWN
        assert "which is no whole number from 0 on" in verdict.reason


def test_an_answer_without_an_offset_may_say_so_by_nil() -> None:
    assert kinds(one_process(("append", 7, [7, None]), ("read", None, [7])), "append-log") == []


def test_offsets_and_tokens_may_be_of_any_size() -> None:
    for far in (2**62, 2**63, 2**70):
        rising = one_process(("append", 7, [7, far]), ("append", 8, [8, far + 1]), ("read", None, []))
        assert kinds(rising, "append-log") == ["stale read"]
        falling = one_process(("append", 7, [7, far + 1]), ("append", 8, [8, far]))
        assert kinds(falling, "append-log") == ["order cycle"]
        tokens = [("acquire", None, [far]), ("acquire", None, [far + 1])]
        assert kinds(one_process(*tokens), "fenced-lock") == []
        assert kinds(one_process(*tokens[::-1]), "fenced-lock") == ["tokens out of order"]


@pytest.mark.parametrize("value", [0, 5, True, 1.5, ["a"]])
def test_a_key_value_store_holds_only_strings(value: Any) -> None:
    for steps in (
        [("put", value, value), ("get", None, None)],
        [("append", value, value), ("get", None, "5")],
        [("put", "a", "a"), ("get", None, value)],
    ):
        verdict = judge_events(one_process(*steps), "kv")
        assert verdict.validity is Validity.UNKNOWN
        assert "which is no string" in verdict.reason


def test_nil_in_a_key_value_store_is_the_empty_string() -> None:
    emptied = [("put", "a", "a"), ("put", None, None), ("get", None, "")]
    assert kinds(one_process(*emptied, ("append", None, None), ("get", None, None)), "kv") == []


def test_nil_is_no_id() -> None:
    for answers in ([None], [None, None], [1, None]):
        verdict = judge_events(one_process(*(("generate", None, answer) for answer in answers)), "unique-ids")
        assert verdict.validity is Validity.UNKNOWN
        assert "answered nil, which is no id" in verdict.reason


def test_ids_must_be_unique() -> None:
    assert kinds(one_process(("generate", None, 1), ("generate", None, 2)), "unique-ids") == []
    assert kinds(one_process(("generate", None, 1), ("generate", None, 1)), "unique-ids") == ["duplicate"]


def test_a_witness_ends_where_the_history_went_wrong_and_forgets_what_lies_before() -> None:
    right = [("enqueue", n, n) if even else ("dequeue", None, n) for n in [*range(29), 0] for even in (True, False)]
    events = one_process(*right, ("enqueue", 90, 90), ("enqueue", 91, 91), ("dequeue", None, 91), ("dequeue", None, 90))
    [witness] = judge_events(events, "queue").witnesses
    assert witness.events[-1]["index"] == 125
    assert len(witness.events) <= 6
    assert witness.facts["rejudged"] is True


@pytest.mark.parametrize("name", KNOWN)
def test_every_write_may_be_acknowledged_as_the_value_that_it_gave(name: str) -> None:
    """Equal texts are not decoded before they are compared, so no model may refuse them."""
    for value in (None, 1, "a", (1, 2), (("w", "x", 1), ("r", "y", None)), (("r", "x"),)):
        assert all(allows(value, value) for allows in KNOWN[name].fixed.values()), value


PAYLOADS = ['"a b"', ' "a"', '"a" ', "[1, [2]]", "7", " 7", "null", '{"a": [1]}', r'"\u00e4\""', "-1", "true"]


@pytest.mark.parametrize("payload", [*PAYLOADS, '["' + "a" * SHORT + '"] '])
def test_a_payload_is_read_as_json_reads_it(payload: str) -> None:
    read = value_of(Event(0, 0, 0, Type.OK, "get", payload=payload))
    assert repr(read) == repr(frozen(json.loads(payload)))


@pytest.mark.parametrize("payload", ["", " ", '"a', '"a" b', "[1", '"a\n"', "a"])
def test_a_payload_that_is_no_json_is_refused(payload: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        value_of(Event(0, 0, 0, Type.OK, "get", payload=payload))


def test_objects_are_judged_apart_and_a_budget_leaves_only_one_unknown() -> None:
    easy = [replace(e, key="easy") for e in one_process(("push", 1, 1), ("pop", None, 1))]
    crowd = one_process(("push", 0, 0))  # its pop precedes the pops of all elements pushed later
    crowd += [event(2 + n, 10 + n, Type.INVOKE, "push", 1 + n % 7) for n in range(14)]
    crowd += [event(16 + n, 10 + n, Type.OK, "push", 1 + n % 7) for n in range(14)]
    crowd += [event(30, 10, Type.INVOKE, "pop", None), event(31, 10, Type.OK, "pop", 0)]
    events = easy + [replace(e, key="hard", index=e.index + len(easy)) for e in crowd]
    verdict = judge_events(events, "stack", Budget(steps=100_000))
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason.startswith("key hard: the budget of 100000 steps ran out")
