"""Banks and long forks against brute force: every set of transfers, every order of writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain, combinations, permutations
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, one_process, renumbered

from checkers.base.history import Event, Type
from checkers.base.independent_search import linearizable
from checkers.base.values import name_of_key
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.model import REFUSED, WrongEvent, operations_of
from checkers.models.objects.bank import adds_up

ACCOUNTS = ("a", "b", "c")


def test_a_bank_has_a_verdict_of_brute_force_in_real_time() -> None:
    """Every order of few operations that overlap is tried, with every choice of transfers without an answer."""
    rng, seen = Random(1), Counter[tuple[Validity, bool]]()
    for _ in range(700):
        bank = Simulated({name: rng.randint(0, 4) for name in ACCOUNTS}, ask_bank, do_bank, lie_of_bank)
        events = history(bank, rng, rng.randint(2, 6), 5, rng.choice([0, 0.2]), rng.choice([0, 0, 1]))
        operations = operations_of(events)
        shown = [dict(o.output) for o in operations if o.f == "read" and o.returned]  # type: ignore[call-overload]
        verdict = judge_events(events, "bank-overdraft")
        fits = has_an_order(operations, shown)
        if shown:
            assert verdict.validity is (Validity.VALID if fits else Validity.INVALID), operations
        if verdict.validity is Validity.VALID:
            negative = any(balance < 0 for balances in shown for balance in balances.values())
            assert judge_events(events, "bank").validity is (Validity.INVALID if negative else Validity.VALID)
        seen[verdict.validity, fits] += 1
    assert min(seen[Validity.VALID, True], seen[Validity.INVALID, False]) > 60, seen


def ask_bank(rng: Random, _: int) -> tuple[str, Any]:
    return ("read", None) if rng.random() < 0.5 else ("transfer", [*rng.sample(ACCOUNTS, 2), rng.randint(1, 3)])


def do_bank(balances: dict[str, int], f: str, value: Any) -> tuple[dict[str, int], Any]:
    return (balances, dict(balances)) if f == "read" else (after(balances, [value]), value)


def lie_of_bank(rng: Random, f: str, was: Any) -> Any:
    return dict(was) | {rng.choice(ACCOUNTS): rng.randint(0, 4)} if f == "read" else was


def has_an_order(operations: Any, shown: list[dict[str, int]]) -> bool:
    """Whether the reads show the first balances, whatever they are, and the transfers before them."""
    transfers = [o.input for o in operations if o.f == "transfer"]
    backwards = [(target, source, amount) for source, target, amount in transfers]
    starts = [tuple(after(shown[0], some).items()) for some in subsets(backwards)] if shown else [()]

    def step(state: Any, o: Any) -> object:
        if o.f == "read":
            return state if dict(state) == dict(o.output) else REFUSED
        return tuple(after(dict(state), [o.input]).items()) if state else state

    return linearizable([o for o in operations if o.returned or o.f == "transfer"], starts, step)  # type: ignore[arg-type]


def after(start: dict[str, int], transfers: Any) -> dict[str, int]:
    balances = dict(start)
    for source, target, amount in transfers:
        balances[source] -= amount
        balances[target] += amount
    return balances


def subsets(items: list[Any]) -> Any:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


def test_one_wrong_read_does_not_accuse_the_others() -> None:
    reads = [("read", None, [1, 2]), *[("read", None, [5, 5])] * 3]
    verdict = judge_events(one_process(*reads), "bank")
    assert "a read showed a total of 3; 3 of 4 reads show 10" in verdict.witnesses[0].summary
    assert verdict.looked_at["violations"] == 1


@pytest.mark.parametrize(
    "strange",
    [["a", "nowhere", 1], ["a", "b", 1.5], ["a", "b", True], "all of it"],
    ids=["account", "1.5", "true", "text"],
)
def test_a_transfer_that_nobody_can_follow_leaves_the_balances_unknown(strange: Any) -> None:
    """The lost transfer of 2 must not look right because another transfer switched the question off."""
    steps = [("transfer", ["a", "b", 2], ["a", "b", 2]), ("read", None, {"a": 5, "b": 5})]
    set_up = opened(["a", 5], ["b", 5])
    assert judge_events(renumbered(set_up + one_process(*steps)), "bank").witnesses[0].kind == "wrong balances"
    verdict = judge_events(renumbered(set_up + one_process(("transfer", strange, strange), *steps)), "bank")
    assert verdict.validity is Validity.UNKNOWN
    assert "between accounts that set-up opened" in verdict.reason


def test_a_bank_without_a_read_is_unknown() -> None:
    verdict = judge_events(one_process(("transfer", ["a", "b", 1], ["a", "b", 1])), "bank")
    assert verdict.validity is Validity.UNKNOWN


def opened(*accounts: Any, type_: Type = Type.OK) -> list[Event]:
    """Return the set-up that opens accounts. accounts: [account, balance]. type_: of the last answer."""
    events: list[Event] = []
    for place, account in enumerate(accounts):
        last = type_ if place == len(accounts) - 1 else Type.OK
        events += [event(0, place, Type.INVOKE, "create", account), event(0, place, last, "create", account)]
    return events


def after_set_up(set_up: list[Event], *steps: tuple[str, Any, Any]) -> list[Event]:
    return renumbered([*set_up, *(replace(e, process=90) for e in one_process(*steps))])


def test_what_set_up_opened_decides_even_where_all_reads_agree_on_something_else() -> None:
    rng, seen = Random(2), {True: 0, False: 0}
    for _ in range(300):
        start = {name: rng.randint(0, 4) for name in ACCOUNTS}
        transfers = [(*rng.sample(ACCOUNTS, 2), rng.randint(1, 3)) for _ in range(rng.randint(0, 3))]
        shown = after(start, transfers)
        lie = rng.choice(["none", "none", "total", "account", "empty"])
        if lie == "total":
            shown[rng.choice(ACCOUNTS)] += rng.choice([-1, 1])
        if lie == "account":
            del shown[rng.choice(ACCOUNTS)]
        steps: list[tuple[str, Any, Any]] = [("transfer", list(t), list(t)) for t in transfers]
        steps += [("read", None, {} if lie == "empty" else shown)] * 3
        verdict = judge_events(after_set_up(opened(*map(list, start.items())), *steps), "bank-overdraft")
        assert verdict.validity is (Validity.VALID if lie == "none" else Validity.INVALID), (start, steps)
        if lie != "none":
            assert verdict.witnesses[0].kind == ("wrong total" if lie == "total" else "other accounts")
            assert verdict.witnesses[0].facts["rejudged"]
        seen[lie == "none"] += 1
    assert min(seen.values()) > 60, seen


def test_the_last_read_shows_all_acknowledged_transfers_and_some_of_those_without_an_answer() -> None:
    rng, seen = Random(3), {True: 0, False: 0}
    for _ in range(600):
        start = {name: rng.randint(0, 4) for name in ACCOUNTS}
        done, open_ = (
            [(*rng.sample(ACCOUNTS, 2), rng.randint(1, 3)) for _ in range(rng.randint(1, 4))] for _ in range(2)
        )
        open_ = open_[: rng.randint(0, 4)]
        kept = done if rng.random() < 0.5 else [t for t in done if rng.random() < 0.7]
        shown = after(start, [*kept, *(t for t in open_ if rng.random() < 0.5)])
        events = opened(*map(list, start.items()))
        for place, transfer in enumerate(open_):
            events.append(event(0, 50 + place, Type.INVOKE, "transfer", list(transfer)))
        steps: list[tuple[str, Any, Any]] = [("transfer", list(t), list(t)) for t in done]
        verdict = judge_events(after_set_up(events, *steps, ("read", None, shown)), "bank-overdraft")
        right = any(after(start, [*done, *some]) == shown for some in subsets(open_))
        assert verdict.validity is (Validity.VALID if right else Validity.INVALID), (start, done, open_, shown)
        if not right:
            assert verdict.witnesses[0].kind == "wrong balances"
            assert verdict.witnesses[0].facts["rejudged"]
        seen[right] += 1
    assert min(seen.values()) > 100, seen


def test_a_read_that_lacks_an_acknowledged_transfer_is_wrong() -> None:
    begun, moved = opened(["a", 5], ["b", 5]), ("transfer", ["a", "b", 1], ["a", "b", 1])
    old, new = ("read", None, {"a": 5, "b": 5}), ("read", None, {"a": 4, "b": 6})
    (stale,) = judge_events(after_set_up(begun, moved, old, new, old), "bank").witnesses
    assert (stale.kind, stale.facts["rejudged"]) == ("wrong balances", True)
    (between,) = judge_events(one_process(old, moved, new, old), "bank").witnesses
    assert "showed a balance of 5 in account a, which no choice of transfers explains" in between.summary
    lost = judge_events(after_set_up(begun, moved, old, old), "bank")
    assert lost.validity is Validity.INVALID
    assert lost.witnesses[0].summary.startswith(
        "the last read showed a 5 and not 4, b 5 and not 6, after 1 acknowledged"
    )
    assert judge_events(after_set_up(begun, old, moved), "bank").validity is Validity.VALID, "nothing was read later"


def test_many_transfers_without_an_answer_are_decided_or_left_open() -> None:
    names = [f"a{n}" for n in range(5)]
    rng = Random(4)
    moves = [(*rng.sample(names, 2), rng.randint(1, 5)) for _ in range(60)]
    assert adds_up(dict.fromkeys(names, 0), moves) is not False
    assert adds_up({**dict.fromkeys(names, 0), "a0": 1000, "a1": -1000}, moves) is False
    assert adds_up({**dict.fromkeys(names, 0), "a0": 1}, moves) is not True, "money was made"


def test_an_account_is_uncertain_if_its_opening_got_no_answer() -> None:
    begun = opened(["a", 10], ["b", 5], type_=Type.INFO)
    with_it, without, strange, none = {"a": 10, "b": 5}, {"a": 10}, {"a": 10, "c": 0}, {"b": 5}
    for shown, right in ((with_it, True), (without, True), (strange, False), (none, False)):
        verdict = judge_events(after_set_up(begun, ("read", None, shown)), "bank")
        assert verdict.validity is (Validity.VALID if right else Validity.INVALID), shown
    both = judge_events(after_set_up(begun, ("read", None, without), ("read", None, with_it)), "bank")
    assert both.validity is Validity.VALID, "the account may have been opened between the two reads"
    changed = after_set_up(begun, *[("read", None, with_it)] * 2, ("read", None, {"a": 10, "b": 9}))
    assert [w.kind for w in judge_events(changed, "bank").witnesses] == ["wrong total"]


def test_an_account_is_certain_if_its_opening_was_answered_once_and_lost_once() -> None:
    twice = [*opened(["a", 10], type_=Type.INFO), *(replace(e, process=8) for e in opened(["a", 10]))]
    assert judge_events(after_set_up(twice, ("read", None, {"a": 10})), "bank").validity is Validity.VALID
    wrong = judge_events(after_set_up(twice, ("read", None, {"a": 20})), "bank")
    assert wrong.witnesses[0].summary == "a read showed a total of 20; set-up opened the accounts with 10 in all"


def test_a_list_of_balances_names_accounts_by_their_places() -> None:
    eleven = [("read", None, [1] * 11), ("read", None, {str(place): 1 for place in range(11)})]
    assert judge_events(one_process(*eleven), "bank").validity is Validity.VALID
    named, placed = opened(["a", 5], ["b", 5]), opened([0, 5], [1, 5])
    assert judge_events(after_set_up(named, ("read", None, [4, 6])), "bank").validity is Validity.VALID
    assert judge_events(after_set_up(placed, ("read", None, [5, 5])), "bank").validity is Validity.VALID
    assert judge_events(after_set_up(placed, ("read", None, [4, 5])), "bank").validity is Validity.INVALID
    moved = ("transfer", ["a", "b", 1], ["a", "b", 1])
    assert judge_events(one_process(moved, ("read", None, [4, 6])), "bank").validity is Validity.VALID


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({}, "no read showed a balance"),
        ([], "no read showed a balance"),
        ({"c": 10}, "no read showed an account of any acknowledged transfer"),
        ([["a", 5], ["a", 5]], "shows the same account twice"),
        ({"b": 20}, "no read showed a balance of account a"),
        ({"a": 5, "b": 10, "c": None}, "no read showed a balance of account c"),
        ([10, None], "no read showed a balance of account 1"),
    ],
)
def test_reads_that_say_nothing_about_transfers_leave_the_verdict_unknown(shown: Any, reason: str) -> None:
    for transfer in (["a", "b", 3], {"from": "a", "to": "b", "amount": 3}):
        verdict = judge_events(one_process(("transfer", transfer, transfer), *[("read", None, shown)] * 2), "bank")
        assert verdict.validity is Validity.UNKNOWN
        assert reason in verdict.reason


@pytest.mark.parametrize("account", ["a", 0, "0", "0a", "3f9a-11", -1])
def test_an_account_may_be_any_text_or_number(account: Any) -> None:
    """A map names the text "0" otherwise than a transfer does."""
    for transfer in ([account, "b", 3], {"from": account, "to": "b", "amount": 3}):
        steps = [("transfer", transfer, transfer)]
        for amount, expected in ((3, Validity.VALID), (2, Validity.INVALID)):
            before, after = ({name_of_key(account): 9 - x, "b": x} for x in (0, amount))
            events = one_process(("read", None, before), *steps, ("read", None, after))
            assert judge_events(events, "bank").validity is expected


def test_reads_of_overlapping_keys_are_explained_exactly_where_some_order_of_writes_fits() -> None:
    rng, seen = Random(9), Counter[str]()
    for _ in range(2000):
        names = "xyzu"[: rng.randint(2, 4)]
        writes = split_up(rng, names)
        honest = rng.sample(writes, len(writes))
        reads = []
        for _ in range(rng.randint(1, 6)):
            keys = rng.sample(names, rng.choice([2, 2, rng.randint(2, len(names))]))
            prefix = set("".join(honest[: rng.randint(0, len(writes))]))
            reads.append({key: (key in prefix) != (rng.random() < 0.25) for key in keys})
        orders = [["".join(order[:n]) for n in range(len(writes) + 1)] for order in permutations(writes)]
        explained = any(
            all(any(all((k in done) == had for k, had in read.items()) for done in prefixes) for read in reads)
            for prefixes in orders
        )
        verdict = judge_events(all_at_once(rng, writes, reads), "long-fork")
        if not any(any(read.values()) for read in reads):
            assert verdict.validity is Validity.UNKNOWN, "no read showed a write"
            continue
        assert verdict.validity is (Validity.VALID if explained else Validity.INVALID), (writes, reads)
        for witness in verdict.witnesses:
            assert witness.facts["rejudged"]
        seen[verdict.witnesses[0].kind if verdict.witnesses else "explained"] += 1
    assert seen.keys() == {"explained", "long fork", "writes in a circle", "half of a write"}
    assert min(seen.values()) > 20, seen


def split_up(rng: Random, names: str) -> list[str]:
    """The keys of each write: mostly one, sometimes several."""
    writes: list[str] = []
    for name in names:
        if writes and rng.random() < 0.2:
            writes[-1] += name
        else:
            writes.append(name)
    return writes


def all_at_once(rng: Random, writes: list[str], reads: list[dict[str, bool]]) -> list[Event]:
    """Return all writes and reads as concurrent operations, so that real time orders none of them."""
    transactions = [([["w", k, 1] for k in keys], [["w", k, 1] for k in keys]) for keys in writes]
    transactions += [
        ([["r", k, None] for k in read], [["r", k, 1 if had else None] for k, had in read.items()]) for read in reads
    ]
    rng.shuffle(transactions)
    events = [event(0, p, Type.INVOKE, "txn", before) for p, (before, _) in enumerate(transactions)]
    events += [event(0, p, Type.OK, "txn", answer) for p, (_, answer) in enumerate(transactions)]
    return renumbered(events)


def test_a_key_written_twice_shows_no_order() -> None:
    steps = [("txn", [["w", "x", n]], [["w", "x", n]]) for n in (1, 2)]
    steps.append(("txn", [["r", "x", None], ["r", "y", None]], [["r", "x", 1], ["r", "y", None]]))
    verdict = judge_events(one_process(*steps), "long-fork")
    assert verdict.validity is Validity.UNKNOWN
    assert "written more than once" in verdict.reason


def wrote(key: str, value: Any) -> tuple[str, Any, Any]:
    return "txn", [["w", key, value]], [["w", key, value]]


def saw(**values: Any) -> tuple[str, Any, Any]:
    return "txn", [["r", key, None] for key in values], [["r", key, value] for key, value in values.items()]


def test_a_long_fork_also_needs_that_values_were_written_and_writes_invoked_before_they_are_read() -> None:
    both = [wrote("x", 1), wrote("y", 2)]
    assert judge_events(one_process(*both, saw(x=1, y=2)), "long-fork").validity is Validity.VALID
    assert judge_events(one_process(*both, saw(x=1, y=None)), "long-fork").validity is Validity.VALID, "no real time"
    for steps, words in (
        ([*both, saw(x=77, y=2)], 'a read showed 77 of "x", which no transaction can have written'),
        ([*both, saw(x=2, y=2)], 'a read showed 2 of "x", which no transaction can have written'),
        ([*both, saw(x=True, y=2)], 'a read showed true of "x", which no transaction can have written'),
        ([*both, saw(p=1, q=None)], 'a read showed 1 of "p", which no transaction can have written'),
        ([saw(x=1, y=None), *both], 'a read showed 1 of "x" before any write of it can have happened'),
    ):
        [witness] = judge_events(one_process(*steps), "long-fork").witnesses
        assert (witness.kind, witness.summary) == ("value from nowhere", words)
        assert witness.facts["rejudged"]


def test_a_write_of_unknown_outcome_may_be_read() -> None:
    lost = one_process(wrote("x", 1))
    lost[1] = replace(lost[1], type=Type.INFO)
    seen = [replace(e, process=1) for e in one_process(wrote("y", 1), saw(x=1, y=None), saw(x=1, y=1))]
    assert judge_events(renumbered([*lost, *seen]), "long-fork").validity is Validity.VALID


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([saw(x=None, y=None)], "every read of several keys showed nil for all of them"),
        ([saw(x=None, y=None), saw(x=1)], "every read of several keys showed nil for all of them"),
        ([saw(x=1, y=None), ("frob", [["w", "x", 1]], [["w", "x", 2]])], "frob is not an operation of a long-fork"),
        ([("txn", [["r", "x", None], ["r", "y", None]], None)], "no read of two keys was answered"),
        ([("txn", [["r", "x", None]] * 2, [["r", "x", None], ["r", "x", 1]])], 'answered key "x" with two different'),
        ([wrote("z", None), saw(x=1, y=None)], 'a write of nil to key "z" looks like no write'),
    ],
)
def test_reads_that_say_nothing_about_the_writes_leave_the_verdict_unknown(steps: Any, reason: str) -> None:
    verdict = judge_events(one_process(wrote("x", 1), wrote("y", 1), *steps), "long-fork")
    assert verdict.validity is Validity.UNKNOWN
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "answer",
    [
        [["r", "p", 7], ["r", "q", None]],
        [["w", "x", 1], ["r", "y", None]],
        [["r", "x", 1]],
        [["r", "y", 1], ["r", "x", 1]],
        7,
    ],
)
def test_an_answer_with_other_steps_than_were_invoked_is_refused(answer: Any) -> None:
    other = ("txn", [["r", "x", None], ["r", "y", None]], answer)
    with pytest.raises(WrongEvent, match="was acknowledged as"):
        judge_events(one_process(wrote("x", 1), other), "long-fork")
    with pytest.raises(WrongEvent, match="was acknowledged as"):
        judge_events(one_process(("txn", [["w", "x", 1]], [["w", "x", 9]])), "long-fork")
