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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
