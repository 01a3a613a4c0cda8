"""A bank: transfer money between accounts, read all balances at once.  Transfers neither create nor destroy money.

    create     [account, balance], in set-up, before the first read
    transfer   [from, to, amount] or {"from", "to", "amount"}; the answer has no value
    read       ok [balance, ...] or {account: balance}: all accounts, in one snapshot

In every snapshot the same accounts add up to the same total.  If reads are snapshots (snapshot isolation and stronger),
this is true in every order of the transfers, so the rule raises no false alarm.

The right accounts are the accounts that acknowledged creates opened, and the right total is the sum of their balances.
If it is unknown whether a create happened, the total is uncertain.  In a file without creates, the right accounts and
the right total are those that most reads show, so that one wrong read does not make all others wrong.  Among equally
frequent ones, those shown first count.

Money may be conserved and yet be in the wrong account.  So every read must show, account by account, the transfers that
were acknowledged before it.  Finally, one order of all transfers must explain all reads.  If the search for this order
ends without an answer, the verdict states that only sums and bounds were judged.  If a transfer names an account that
set-up did not open, the right balances are unknown, and so is the verdict.

`bank` also forbids negative balances, and `bank-overdraft` allows them.  (After Jepsen's bank test.)

*Lost transfers.*  A *late* read was invoked after every acknowledged transfer had returned and after the last transfer
was invoked.  It must show the first balances, plus all acknowledged transfers, plus some of the transfers without an
answer.  A store may answer one late read from an old snapshot.  If no late read matches, a transfer was lost, or
happened twice.

To decide whether some of n transfers without an answer add up to a difference is the subset sum problem.  All sums are
computed, except sums from which the remaining transfers can no longer reach the difference.  If there are more than
SUMS_MAX sums, no violation is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from checkers.base.checker import Budget
from checkers.base.history import CREATE
from checkers.base.values import text_of_key
from checkers.models import known_object
from checkers.models.model import REFUSED, Model, Operation, State, text_of
from checkers.models.search import steps_first
from checkers.models.witnesses import Decided, NoOrder

SUMS_MAX = 20_000

Balances = tuple[tuple[str, int], ...]
"""(account, balance), ascending by account."""


class Transfer(NamedTuple):
    operation: Operation
    source: str
    target: str
    amount: int


def lost_transfers(
    opened: Mapping[str, int], transfers: Sequence[Transfer], reads: Sequence[tuple[Operation, Balances]]
) -> Decided | None:
    """Return the violation if no late read shows all acknowledged transfers.

    Returns None if a late read does, or if this is not known.

    opened: the first balance of every account
    reads: answered reads, each of exactly these accounts
    """
    moments = (t.operation.call if t.operation.ret is None else t.operation.ret for t in transfers)
    last = max(moments, default=-1)
    late = [(read, shown) for read, shown in reads if read.call > last]
    if not late or not transfers:
        return None
    expected = Counter(opened)
    for transfer in transfers:
        if transfer.operation.returned:
            _move(expected, transfer)
    unanswered = [transfer for transfer in transfers if not transfer.operation.returned]
    for _, shown in late:
        wrong = {account: balance - expected[account] for account, balance in shown}
        if adds_up(wrong, [(t.source, t.target, t.amount) for t in unanswered]) is not False:
            return None
    read, shown = late[-1]
    return _in_words(read, dict(shown), expected, len(transfers) - len(unanswered), unanswered)


class _Bound(NamedTuple):
    """A lower or upper bound that a read sets on the first balance of an account."""

    balance: int
    read: Operation


def out_of_bounds(
    opened: Mapping[str, int], transfers: Sequence[Transfer], reads: Sequence[tuple[Operation, Balances]]
) -> Decided | None:
    """Return the violation of a read that lacks an acknowledged transfer, or shows a transfer that had not begun.

    opened: the first balances as far as they are known

    An account is a counter: a read shows its first balance, all transfers that had returned before the read was
    invoked, and any of the transfers that ran concurrently.  So each read bounds the first balance from both sides, and
    all bounds must agree.
    """
    shown_by = {read.call: dict(shown) for read, shown in reads}
    least = {account: _Bound(balance, None) for account, balance in opened.items()}  # type: ignore[arg-type]
    most = dict(least)
    for read, before, meanwhile in _around(transfers, [read for read, _ in reads]):
        for account, balance in shown_by[read.call].items():
            low, high = meanwhile.get(account, (0, 0))
            base = balance - before.get(account, 0)
            if account not in least or base - high > least[account].balance:
                least[account] = _Bound(base - high, read)
            if account not in most or base - low < most[account].balance:
                most[account] = _Bound(base - low, read)
            if least[account].balance > most[account].balance:
                return _contradiction(account, least[account], most[account], opened, transfers, shown_by)
    return None


_Changes = dict[str, int]
_Ranges = dict[str, tuple[int, int]]


def _around(transfers: Sequence[Transfer], reads: Sequence[Operation]) -> Iterator[tuple[Operation, _Changes, _Ranges]]:
    """Yield (read, changes by transfers that had returned before it, minimum and maximum change by concurrent ones).

    The reads come in the order of their answers.  O((transfers + reads) * accounts).
    """
    calls = [(t.operation.call, 0, t) for t in transfers]
    returns = [(t.operation.ret, 1, t) for t in transfers if t.operation.ret is not None]
    begins = [(read.call, 2, read) for read in reads]
    ends = [(read.ret or 0, 3, read) for read in reads]
    before: _Changes = {}
    called: _Ranges = {}
    returned: _Ranges = {}
    at_call: dict[int, tuple[_Changes, _Ranges]] = {}
    events: list[tuple[int, int, Any]] = sorted([*calls, *returns, *begins, *ends], key=lambda each: each[:2])
    for _, kind, thing in events:
        if kind < 2:
            ranges = called if kind == 0 else returned
            for account, change in ((thing.source, -thing.amount), (thing.target, thing.amount)):
                low, high = ranges.get(account, (0, 0))
                ranges[account] = low + min(0, change), high + max(0, change)
                if kind == 1:
                    before[account] = before.get(account, 0) + change
        elif kind == 2:
            at_call[thing.call] = dict(before), dict(returned)
        else:
            sums, done = at_call.pop(thing.call)
            nothing = (0, 0)
            open_ = {a: (r[0] - done.get(a, nothing)[0], r[1] - done.get(a, nothing)[1]) for a, r in called.items()}
            yield thing, sums, open_


def _contradiction(
    account: str,
    least: _Bound,
    most: _Bound,
    opened: Mapping[str, int],
    transfers: Sequence[Transfer],
    shown_by: Mapping[int, Mapping[str, int]],
) -> Decided:
    reads = sorted({bound.read.call: bound.read for bound in (least, most) if bound.read is not None}.items())
    two = [read for _, read in reads]
    culprit = max(two, key=lambda read: read.ret or 0)
    on_account = [t for t in transfers if account in (t.source, t.target)]
    begins = None if len(two) == 1 else two[0].call
    involved = [
        t.operation
        for t in on_account
        if t.operation.call < (culprit.ret or 0)
        and (begins is None or t.operation.ret is None or t.operation.ret > begins)
    ]
    shown = shown_by[culprit.call][account]
    since = f"the read at index {two[0].ret} showed {shown_by[two[0].call][account]}"
    if len(two) == 1:
        since = f"set-up opened it with {opened[account]}"
    words = f"a read showed a balance of {shown} in account {account}, which no choice of transfers explains: {since}"
    right = f"a balance of account {account} that shows every acknowledged transfer"
    known = {account: opened[account]} if account in opened else {}
    smaller = in_real_time(known, on_account, account)
    return Decided("wrong balances", words, [*involved, *two], culprit, right, smaller, [account], _SHOWN)


_SHOWN = "A read shows every transfer that was acknowledged before the read, and none that was invoked after the read"


def balances_of(read: Operation) -> Balances:
    """Return the balances of an answer that `no_balances` accepts; nil is no balance."""
    return tuple(sorted((account, balance) for account, balance in _pairs(read) if balance is not None))


def _account(stated: Any) -> str:
    """Return the name of an account as text: a read names it by the key of a map, a transfer by a value."""
    return text_of_key(stated) if isinstance(stated, str) else str(stated)


def _pairs(read: Operation) -> Iterator[tuple[str, int | None]]:
    """Yield (account, balance or None) of an answer; in a list, the position is the account."""
    shown = read.output
    assert isinstance(shown, tuple)
    if all(each is None or isinstance(each, int) for each in shown):
        yield from ((str(place), balance) for place, balance in enumerate(shown))
    else:
        yield from ((_account(account), balance) for account, balance in shown)


def in_real_time(opened: Mapping[str, int], transfers: Sequence[Transfer], only: str | None = None) -> Model:
    """Return the model of a bank whose state is its balances, or None as long as no read has shown them.

    only: the account to which the bank is reduced; None for all accounts"""
    transfer_at = {t.operation.call: t for t in transfers}
    first: State = tuple(sorted(opened.items())) if opened else None

    def step(state: State, operation: Operation) -> object:
        if (transfer := transfer_at.get(operation.call)) is not None:
            if state is None:
                return None
            assert isinstance(state, tuple)
            balances = dict(state)
            for account, change in ((transfer.source, -transfer.amount), (transfer.target, transfer.amount)):
                if account in balances:
                    balances[account] += change
            return tuple(sorted(balances.items()))
        if operation.f != "read" or not operation.returned:
            return state
        shown = tuple(each for each in balances_of(operation) if only in (None, each[0]))
        return shown if state is None or state == shown else REFUSED

    def show(state: State) -> str:
        assert isinstance(state, tuple | None)
        return f"{only or 'balances'}: ?" if state is None else _words(dict(state))

    return Model("bank", init=lambda: first, step=step, observers=frozenset({"read"}), show=show)


def adds_up(wanted: Mapping[str, int], moves: Sequence[tuple[str, str, int]]) -> bool | None:
    """Return True if some of the moves (source, target, amount) change the balances by `wanted`, False if none do.

    Returns None if there are too many sums to decide."""
    order = sorted(wanted)
    changes = [tuple((a == target) * n - (a == source) * n for a in order) for source, target, n in moves]
    least, most = ([sum(pick(0, c[at]) for c in changes) for at in range(len(order))] for pick in (min, max))
    goal = tuple(wanted[account] for account in order)
    sums = {(0,) * len(order)}
    for change in changes:
        sums |= {tuple(x + y for x, y in zip(each, change, strict=True)) for each in sums}
        least, most = (
            [x - pick(0, y) for x, y in zip(side, change, strict=True)] for side, pick in ((least, min), (most, max))
        )
        sums = {s for s in sums if all(x + a <= g <= x + b for x, a, g, b in zip(s, least, goal, most, strict=True))}
        if len(sums) > SUMS_MAX:
            return None
    return goal in sums


def _move(balances: Counter[str], transfer: Transfer) -> None:
    balances[transfer.source] -= transfer.amount
    balances[transfer.target] += transfer.amount


def _in_words(
    read: Operation, shown: Mapping[str, int], expected: Mapping[str, int], count: int, unanswered: Sequence[Transfer]
) -> Decided:
    wrong = [f"{a} {shown[a]} and not {expected[a]}" for a in sorted(shown) if shown[a] != expected[a]]
    amounts = ", ".join(wrong[:4]) + ", …" * (len(wrong) > 4)
    words = f"the last read showed {amounts}, after {count} acknowledged transfers; no later read shows all of these"
    why = f"{_SHOWN}.  No choice of the {len(unanswered)} transfers without an answer makes up the difference"
    involved = [*(t.operation for t in unanswered), read]
    right = _words(expected) + ", and what transfers without an answer change" * bool(unanswered)
    return Decided("wrong balances", words, involved, read, right, in_real_time(expected, unanswered), why=why)


def _words(balances: Mapping[str, int]) -> str:
    return ", ".join(f"{account}: {balance}" for account, balance in sorted(balances.items()))


TRANSFER, READ = "transfer", "read"


class Opening(NamedTuple):
    """Accounts that set-up opened.

    creates: all operations of set-up
    balances: first balance of each account that was certainly opened
    uncertain: accounts that may have been opened
    """

    creates: tuple[Operation, ...]
    balances: dict[str, int]
    uncertain: frozenset[str]


def judge(
    operations: Sequence[Operation], budget: Budget, *, overdraft: bool, total: int | None = None
) -> known_object.ObjectFinding:
    """Find the first wrong read of each kind.

    overdraft: True if balances may be negative
    total: sum of all balances, or None if the user did not state it
    """
    reads = [(o, balances_of(o)) for o in operations if o.f == READ and o.returned]
    usual = _usual_accounts(reads) if reads else ()
    counts = {"reads": len(reads), "transfers": sum(o.f == TRANSFER for o in operations)}
    if not reads:
        reason = "no read of the balances was answered, so nothing shows whether money was conserved"
        return known_object.ObjectFinding(reason=reason, steps=len(operations), counts=counts)
    opening = opening_of(operations)
    transfers = _transfers(operations, None if opening is None else frozenset(opening.balances))
    strange = transfers if isinstance(transfers, Operation) else None
    with_usual_accounts = [read for read in reads if _accounts(read[1]) == usual]
    found: list[Decided | None] = [None if total is None else _other_total(with_usual_accounts, total)]
    if opening is None:
        found = [_other_accounts(reads), _other_total(with_usual_accounts, total)]
    elif opening.uncertain:
        found = [_not_as_opened(reads, opening), _other_total(with_usual_accounts, total)]
    else:
        found += [_not_as_opened(reads, opening), _other_total(reads, opening=opening)]
        if not isinstance(transfers, Operation) and not any(found):
            found.append(lost_transfers(opening.balances, transfers, reads))
    opened = opening.balances if opening is not None and not opening.uncertain else {}
    if not isinstance(transfers, Operation) and not any(found):
        found.append(out_of_bounds(opened, transfers, reads))
    if not overdraft:
        found.append(_negative(reads))
    violations: tuple[NoOrder | Decided, ...] = tuple(each for each in found if each is not None)
    closed = opening is None or not opening.uncertain
    if not isinstance(transfers, Operation) and not violations and closed:
        model = in_real_time(opened, transfers)
        searched = known_object.by_search(
            model, operations, replace(budget, steps=min(budget.steps, steps_first(len(operations))))
        )
        violations = searched.violations
        counts[known_object.ONLY_BOUNDS] = int(bool(searched.reason))
    reason = ""
    if not violations and strange is not None and opening is not None and not opening.uncertain:
        reason = (
            f"index {strange.call}: {strange.input!r:.60} moves no whole amount between accounts that set-up opened"
        )
        reason += ", so the right balances are unknown"
    elif not violations and opening is None:
        reason = _nothing_shown(operations, reads)
    return known_object.ObjectFinding(violations, reason, len(operations), counts=counts)


def opening_of(operations: Sequence[Operation]) -> Opening | None:
    """Return the accounts that set-up opened; None if they are unknown.

    They are unknown if there are no creates, if a create has another form, if two creates open one account with
    different balances, if a read was invoked before the last create ended, or if a read is a list and the accounts are
    not its positions.
    """
    creates = tuple(o for o in operations if o.f == CREATE)
    first_read = min((o.call for o in operations if o.f == READ and o.returned), default=0)
    if not creates or any((o.call if o.completed is None else o.completed) > first_read for o in creates):
        return None
    balances: dict[str, int] = {}
    for create in creates:
        opened = _opened_by(create)
        if opened is None or balances.setdefault(*opened) != opened[1]:
            return None
    certain = {opened[0] for o in creates if o.returned and (opened := _opened_by(o)) is not None}
    listed = any(_is_list(o) for o in operations if o.f == READ and o.returned)
    if listed and set(balances) != {str(place) for place in range(len(balances))}:
        return None
    known = {account: balance for account, balance in balances.items() if account in certain}
    return Opening(creates, known, frozenset(balances) - certain)


def _opened_by(create: Operation) -> tuple[str, int] | None:
    opened = create.input
    if isinstance(opened, tuple) and len(opened) == 2 and _is_number(opened[1]):
        return _account(opened[0]), opened[1]
    return None


def no_balances(operation: Operation) -> str:
    """Return the reason why the answer of a read shows no balances, or ""."""
    if operation.f != READ:
        return ""
    shown = operation.output
    words = f"a read of a bank answered {text_of(shown)}"
    if not isinstance(shown, tuple):
        return f"{words}, which are no balances"
    if all(each is None or _is_number(each) for each in shown):
        return f"{words}, which shows no balance" if shown and not any(map(_is_number, shown)) else ""
    if not all(isinstance(e, tuple) and len(e) == 2 and (e[1] is None or _is_number(e[1])) for e in shown):
        return f"{words}, which are no balances"
    if len({_account(account) for account, _ in shown}) < len(shown):
        return f"{words}, which shows the same account twice"
    return f"{words}, which shows no balance" if not any(_is_number(balance) for _, balance in shown) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Reads = Sequence[tuple[Operation, Balances]]


def _accounts(shown: Balances) -> tuple[str, ...]:
    return tuple(account for account, _ in shown)


def _nothing_shown(operations: Sequence[Operation], reads: _Reads) -> str:
    """Return one sentence with the reason why these reads show nothing about money; "" if they show something."""
    shown = {account for _, balances in reads for account in _accounts(balances)}
    if not shown:
        return "no read showed a balance, so nothing shows whether money was conserved"
    moved = {account for o in operations if o.f == TRANSFER and o.returned for account in _moved_between(o)}
    if any(_is_list(read) for read, _ in reads):
        moved = set()  # a list does not name its accounts
    if moved and not moved & shown:
        return "no read showed an account of any acknowledged transfer, so nothing shows whether money was conserved"
    without = {account for read, _ in reads for account, balance in _pairs(read) if balance is None}
    if unshown := (without | moved) - shown:
        return f"no read showed a balance of account {min(unshown)}, so nothing shows what became of its money"
    return ""


def _is_list(read: Operation) -> bool:
    """Return True if an answer is a list, whose positions are the accounts."""
    shown = read.output
    return isinstance(shown, tuple) and len(shown) > 0 and all(each is None or _is_number(each) for each in shown)


def _moved_between(transfer: Operation) -> tuple[str, ...]:
    """Return the accounts that a transfer names: two, or none if it has another form."""
    given = transfer.input
    if not isinstance(given, tuple) or len(given) != 3:
        return ()
    if all(isinstance(each, tuple) and len(each) == 2 for each in given):  # {"from", "to", "amount"}
        ends = tuple(value for name, value in given if name in ("from", "to"))
    else:
        ends = given[:2]
    return tuple(map(_account, ends)) if all(isinstance(each, str | int) for each in ends) else ()


def _transfers(operations: Sequence[Operation], opened: frozenset[str] | None) -> list[Transfer] | Operation:
    """Return all transfers, or the first operation that is no valid transfer.

    It is invalid if it has another form, if its amount is no whole number, or if one of its accounts was not opened.

    opened: the accounts; None if any account may exist
    """
    found: list[Transfer] = []
    for operation in operations:
        if operation.f == TRANSFER:
            given, ends = operation.input, _moved_between(operation)
            known = opened is None or set(ends) <= opened
            if len(ends) != 2 or not known or not isinstance(given, tuple):
                return operation
            amount = dict(given).get("amount") if isinstance(given[0], tuple) else given[2]
            if not isinstance(amount, int) or isinstance(amount, bool):
                return operation
            found.append(Transfer(operation, *ends, amount))
    return found


def _not_as_opened(reads: _Reads, opening: Opening) -> Decided | None:
    """Return the violation of the first read that lacks an account which set-up opened, or shows any other account."""
    possible = opening.uncertain | set(opening.balances)
    for read, shown in reads:
        accounts = set(_accounts(shown))
        if missing := sorted(set(opening.balances) - accounts):
            words = f"a read showed no balance of {', '.join(missing)}, whose opening was acknowledged in set-up"
        elif strange := sorted(accounts - possible):
            words = f"a read showed a balance of {', '.join(strange)}, which set-up did not open"
        else:
            continue
        fits = _ruled(lambda opened, b: set(opened) <= set(_accounts(b)) and set(_accounts(b)) <= possible)
        return Decided("other accounts", words, [*opening.creates, read], read, _EVERY_ACCOUNT, fits)
    return None


_EVERY_ACCOUNT = "a balance of every account, and of no other, as transfers neither open nor close accounts"


def _ruled(fits: Callable[[dict[str, int], Balances], bool], rule: str = "no account") -> Model:
    """Return the model of a bank that checks only one rule about reads.  Its state is the accounts that were opened.

    fits: a function (accounts with their first balances, balances of a read) -> True if the read is right
    rule: text that is shown for a state without accounts
    """

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, frozenset)
        if operation.f == CREATE:
            opened = _opened_by(operation)
            return state if opened is None else state | {opened}
        if operation.f == READ and operation.returned and not fits(dict(state), balances_of(operation)):
            return REFUSED
        return state

    def show(state: State) -> str:
        assert isinstance(state, frozenset)
        return ", ".join(f"{account}: {balance}" for account, balance in sorted(state)) or rule

    return Model("bank", init=frozenset, step=step, observers=frozenset({READ}), show=show)


def _usual_accounts(reads: _Reads) -> tuple[str, ...]:
    return Counter(_accounts(shown) for _, shown in reads).most_common(1)[0][0]


def _other_accounts(reads: _Reads) -> Decided | None:
    usual = _usual_accounts(reads)
    for read, shown in reads:
        accounts = _accounts(shown)
        if accounts != usual:
            these, others = (", ".join(names) or "none" for names in (accounts, usual))
            words = f"a read showed the accounts {these}; other reads show {others}"
            smaller = _ruled(lambda _, b: _accounts(b) == usual, repr(usual))
            return Decided("other accounts", words, [read], read, _EVERY_ACCOUNT, smaller)
    return None


def _other_total(reads: _Reads, stated: int | None = None, opening: Opening | None = None) -> Decided | None:
    """Return the violation of the first read whose total differs from the right total.

    The right total is that of set-up, or else the stated one, or else the one that most reads show.
    """
    if opening is not None:
        total = sum(opening.balances.values())
        known = f"set-up opened the accounts with {total} in all"
    elif stated is not None:
        total, known = stated, f"the stated total is {stated}"
    else:
        [(total, times)] = Counter(_total(shown) for _, shown in reads).most_common(1)
        known = f"{times} of {len(reads)} reads show {total}"
    creates = () if opening is None else opening.creates
    for read, shown in reads:
        if _total(shown) != total:
            words = f"a read showed a total of {_total(shown)}; {known}"
            why = f"Transfers conserve the total, and this read differs from it by {_total(shown) - total:+d}"
            rule = "no account" if creates else f"{total} in all"
            smaller = _ruled(lambda _, b: _total(b) == total, rule)
            right = f"balances that add up to {total}"
            return Decided("wrong total", words, [*creates, read], read, right, smaller, why=why)
    return None


def _negative(reads: _Reads) -> Decided | None:
    for read, shown in reads:
        for account, balance in shown:
            if balance < 0:
                words = f"a read showed a balance of {balance} in account {account}"
                why = "The bank must refuse a transfer that would overdraw an account"
                fits = _ruled(lambda _, b: all(balance >= 0 for _, balance in b), "no negative balance")
                return Decided("negative balance", words, [read], read, "no balance below 0", fits, why=why)
    return None


def _total(shown: Balances) -> int:
    return sum(balance for _, balance in shown)


BANK = known_object.KnownObject(
    "bank",
    "Bank",
    "Does every read show the same total of money and no negative balance, and the last all acknowledged transfers?",
    partial(judge, overdraft=False),
    {TRANSFER: known_object.CHANGES, READ: known_object.SHOWS, CREATE: known_object.ObjectFunction()},
    "a bank",
    whole=True,
    set_up=True,
    odd_answer=no_balances,
)

BANK_OVERDRAFT = replace(
    BANK,
    name="bank-overdraft",
    title="Bank with overdraft",
    question="Does every read show the same total of money, and the last all acknowledged transfers?",
    judge=partial(judge, overdraft=True),
)
"""The `bank` object with balances that may be negative."""
