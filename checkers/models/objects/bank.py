"""A bank: transfer money between accounts, read all balances at once.  Transfers neither make nor destroy money.

    transfer   [from, to, amount] or {"from", "to", "amount"}; the answer has no value
    read       ok [balance, ...] or {account: balance}: all accounts, in one snapshot

In every snapshot the same accounts add up to the same total.  If reads are snapshots (snapshot isolation and stronger),
this is true in every order of the transfers, so the rule raises no false alarm.  The right total is the one that most
reads show, so one wrong read does not accuse all others.  On a tie it is the total that was shown first.

`bank` also forbids negative balances, and `bank-overdraft` allows them.  (After Jepsen's bank test.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import Decided, KnownObject, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation

TRANSFER, READ = "transfer", "read"

Balances = tuple[tuple[str, int], ...]
"""(account, balance), ascending by account."""


def judge(operations: Sequence[Operation], budget: Budget, *, overdraft: bool) -> ObjectFinding:
    """Find the first wrong read of each kind.  overdraft: balances may be negative.  Raises WrongOperation."""
    for operation in operations:
        if operation.f not in (TRANSFER, READ):
            raise WrongOperation(f"{operation.f} is not an operation of a bank (transfer, read)")
    reads = [(o, balances_of(o)) for o in operations if o.f == READ and o.returned]
    counts = {"reads": len(reads), "transfers": sum(o.f == TRANSFER for o in operations)}
    if not reads:
        reason = "no read of the balances was answered, so nothing shows whether money was conserved"
        return ObjectFinding(reason=reason, steps=len(operations), counts=counts)
    found = [_other_accounts(reads), _other_total(reads), None if overdraft else _negative(reads)]
    return ObjectFinding(tuple(each for each in found if each is not None), steps=len(operations), counts=counts)


def balances_of(read: Operation) -> Balances:
    """The balances that a read showed.  Raises WrongOperation."""
    shown = read.output
    if isinstance(shown, tuple) and all(_is_number(each) for each in shown):
        return tuple((str(account), balance) for account, balance in enumerate(shown))
    if isinstance(shown, tuple) and all(isinstance(e, tuple) and len(e) == 2 and _is_number(e[1]) for e in shown):
        return tuple(sorted((str(account), balance) for account, balance in shown))
    raise WrongOperation(f"index {read.ret}: a read of a bank answered {shown!r:.60}, which are no balances")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Reads = Sequence[tuple[Operation, Balances]]


def _other_accounts(reads: _Reads) -> Decided | None:
    usual = Counter(tuple(account for account, _ in shown) for _, shown in reads).most_common(1)[0][0]
    for read, shown in reads:
        accounts = tuple(account for account, _ in shown)
        if accounts != usual:
            words = f"a read showed the accounts {', '.join(accounts) or 'none'}; other reads show {', '.join(usual)}"
            right = "a balance of every account, and of no other"
            why = ["Transfers neither open nor close accounts"]
            violation = Violation("other accounts", words, [read], read, right, why)
            return Decided(violation, _accepting("bank", lambda b: tuple(a for a, _ in b) == usual, repr(usual)))
    return None


def _other_total(reads: _Reads) -> Decided | None:
    totals = Counter(_total(shown) for _, shown in reads)
    total, times = totals.most_common(1)[0]
    for read, shown in reads:
        if _total(shown) != total:
            words = f"a read showed a total of {_total(shown)}; {times} of {len(reads)} reads show {total}"
            why = [f"Transfers conserve the total, and this read differs from it by {_total(shown) - total:+d}"]
            violation = Violation("wrong total", words, [read], read, f"balances that add up to {total}", why)
            return Decided(violation, _accepting("bank", lambda b: _total(b) == total, f"{total} in all"))
    return None


def _negative(reads: _Reads) -> Decided | None:
    for read, shown in reads:
        for account, balance in shown:
            if balance < 0:
                words = f"a read showed a balance of {balance} in account {account}"
                why = ["The bank must refuse a transfer that would overdraw an account"]
                violation = Violation("negative balance", words, [read], read, "no balance below 0", why)
                fits = _accepting("bank", lambda b: all(balance >= 0 for _, balance in b), "no negative balance")
                return Decided(violation, fits)
    return None


def _total(shown: Balances) -> int:
    return sum(balance for _, balance in shown)


def _accepting(name: str, fits: Callable[[Balances], bool], words: str) -> Model:
    """The model of a bank that checks only one rule about reads.  words: the rule, as the state shows it."""

    def step(state: State, operation: Operation) -> object:
        return state if operation.f != READ or not operation.returned or fits(balances_of(operation)) else REFUSED

    return Model(name, init=lambda: words, step=step, observers=frozenset({READ}), show=str)


BANK = KnownObject(
    "bank",
    "Bank",
    "Does every read show the same total of money, and no negative balance?",
    partial(judge, overdraft=False),
    whole=True,
    fixed={TRANSFER: the_same},
)

BANK_OVERDRAFT = KnownObject(
    "bank-overdraft",
    "Bank with overdraft",
    "Does every read show the same total of money?",
    partial(judge, overdraft=True),
    whole=True,
    fixed={TRANSFER: the_same},
)
"""The same, but balances may be negative."""
