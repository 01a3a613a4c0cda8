"""Were all acknowledged transfers of a bank still there in the end?  Money that is conserved may be in the wrong place.

Look at the reads that were invoked after every acknowledged transfer had returned and after the last transfer was
invoked.  Such a *late* read must show the first balances, plus all acknowledged transfers, plus some of the transfers
without an answer.  A store may answer one late read from an old snapshot.  If none of them fits, something is lost, or
took place twice.

Whether some of n transfers without an answer add up to a difference is the subset sum problem.  All sums are made, but
for those from which the rest cannot reach the difference any more.  Beyond SUMS_MAX nothing is claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from checkers.models.known_object import Decided
from checkers.models.model import REFUSED, Model, Operation, State
from checkers.models.projection import Violation

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
    """The violation if no late read shows all acknowledged transfers; None if one does, or if it is not known.

    opened: the first balance of every account.  reads: answered reads, each of exactly these accounts.
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
    """What a read says of the first balance of an account: at least, or at most, this."""

    balance: int
    read: Operation


def out_of_bounds(
    opened: Mapping[str, int], transfers: Sequence[Transfer], reads: Sequence[tuple[Operation, Balances]]
) -> Decided | None:
    """Return the violation of a read that lacks an acknowledged transfer, or shows one that had not begun.

    opened: the first balances as far as they are known.  An account is a counter: a read shows its first balance, all
    transfers that had returned before the read was invoked, and any of those that ran meanwhile.  So each read bounds
    the first balance from both sides, and all bounds must agree.
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
    """Yield each read with the changes that had returned before it, and the least and greatest sum of those meanwhile.

    The reads come in order of their answers.  O((transfers + reads) * accounts).
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
    since = (
        f"set-up opened it with {opened[account]}"
        if len(two) == 1
        else (f"the read at index {two[0].ret} showed {shown_by[two[0].call][account]}")
    )
    words = f"a read showed a balance of {shown} in account {account}, which no choice of transfers explains: {since}"
    why = [
        "Every transfer that was acknowledged before a read was invoked shows in it, and none that was invoked later",
        f"{len(involved)} transfers of account {account} ran since then; one without an answer may not have happened",
        f"Only account {account} matters here; all others are left out",
    ]
    right = f"a balance of account {account} that shows every acknowledged transfer"
    violation = Violation("wrong balances", words, [*involved, *two], culprit, right, why)
    states = (opened.get(account),)
    return Decided(violation, _of_account(account, {t.operation.call: t for t in on_account}), states)


def _of_account(account: str, transfer_at: Mapping[int, Transfer]) -> Model:
    """The model of a bank that is reduced to one account.  The state is its balance; None: not known yet."""

    def step(state: State, operation: Operation) -> object:
        if (transfer := transfer_at.get(operation.call)) is not None:
            change = transfer.amount * ((account == transfer.target) - (account == transfer.source))
            return None if state is None else _number(state) + change
        if not operation.returned:
            return state
        shown = dict(balances_of(operation))[account]
        return shown if state is None or state == shown else REFUSED

    return Model(
        "bank", init=lambda: None, step=step, show=lambda state: f"{account}: {'?' if state is None else state}"
    )


def _number(state: State) -> int:
    assert isinstance(state, int)
    return state


def balances_of(read: Operation) -> Balances:
    """Return the balances of an answer in which `bank.no_balances` finds nothing odd; nil is no balance."""
    shown = read.output
    assert isinstance(shown, tuple)
    listed = all(each is None or isinstance(each, int) for each in shown)
    pairs = enumerate(shown) if listed else shown
    return tuple(sorted((str(account), balance) for account, balance in pairs if balance is not None))


def in_real_time(opened: Mapping[str, int], transfers: Sequence[Transfer]) -> Model:
    """The model of a whole bank: the state is its balances; None: no read has shown them yet."""
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
        shown = balances_of(operation)
        return shown if state is None or state == shown else REFUSED

    def show(state: State) -> str:
        assert isinstance(state, tuple | None)
        return "not known" if state is None else _words(dict(state))

    return Model("bank", init=lambda: first, step=step, observers=frozenset({"read"}), show=show)


def adds_up(wanted: Mapping[str, int], moves: Sequence[tuple[str, str, int]]) -> bool | None:
    """Whether some of these moves (source, target, amount) change the balances by `wanted`; None if it is not known."""
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
    named = ", ".join(wrong[:4]) + ", …" * (len(wrong) > 4)
    words = f"the last read showed {named}, after {count} acknowledged transfers; no read after them shows them all"
    why = [f"With all {count} acknowledged transfers the accounts hold {_words(expected)}"]
    if unanswered:
        why.append(f"No choice of the {len(unanswered)} transfers without an answer makes up the difference")
    why.append("All acknowledged transfers had returned before the read was invoked, and stand in the first state here")
    involved = [*(t.operation for t in unanswered), read]
    right = _words(expected) + ", and what transfers without an answer change" * bool(unanswered)
    violation = Violation("wrong balances", words, involved, read, right, why)
    return Decided(violation, _after_all(unanswered, tuple(sorted(shown.items()))), (tuple(sorted(expected.items())),))


def _words(balances: Mapping[str, int]) -> str:
    return ", ".join(f"{account}: {balance}" for account, balance in sorted(balances.items()))


def _after_all(unanswered: Sequence[Transfer], shown: Balances) -> Model:
    """The model of a bank that begins with all acknowledged transfers.  The state is its balances.

    shown: what the only read answered.
    """
    of_call = {transfer.operation.call: transfer for transfer in unanswered}

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        if operation.call in of_call:
            balances = Counter(dict(state))
            _move(balances, of_call[operation.call])
            return tuple(sorted(balances.items()))
        return state if shown == state else REFUSED

    def show(state: State) -> str:
        assert isinstance(state, tuple)
        return _words(dict(state))

    return Model("bank", init=tuple, step=step, show=show)
