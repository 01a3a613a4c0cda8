"""A key-value store of strings: get, put, append.  Every key begins with the empty string.

nil means no value, which is the same as the empty string.  Any other value that is no string is rejected.

The order is decided in near-linear time if the gets certainly identify the writes that they show, for example if no
value is written to a key twice.  Otherwise a search decides.

Each append makes a new state, so a key has far too many states to enumerate.  But states are only compared with
answers.  If a string is no prefix of any string that was read, no append turns it into such a prefix.  So all such
strings count as one state (`_BEYOND`) until a put replaces them.

*Order.*  A put starts a *generation* of the string, and appends lengthen the string.  The appends before the first put
form a generation, too, which begins with the empty string.  A get shows one generation up to some append.  So the
longest string that was read of a generation shows the order of its appends, and every other get of the generation has a
place in that order.

An order of all operations is then a sequence of blocks that do not overlap.  Each generation that was read is one
block, with its put, the appends that were read, and its gets in their certain order.  Each write that no get shows is a
block by itself.  The block of such a put may stand between any two blocks.  So may the block of such an append, because
it lengthens a string that no later get reads.

A block begins, at the latest, with its first return and ends, at the earliest, with its last call.

1. Within a block, no operation may return before an operation that precedes it in the block was called.
2. If the first return comes before the last call, the block occupies the time between them.  Two such blocks may not
   overlap.
3. Otherwise all operations of the block overlap, and the block fits into any moment between the last call and the first
   return.  One such moment must lie outside of all blocks of rule 2.

If 1, 2 and 3 hold, the blocks have an order; else there is none.  (This is the theorem of Gibbons & Korach 1997 on
registers whose values are unique, with generations in place of values.)  An order is replayed by the model before it is
reported.

*Writes that a get shows.*  If a value was put or appended several times, real time may identify the write that a get
shows: an append was called before any read that shows its value or a later one returned.  If several operations remain
for one place, or if a string can be split into values in several ways, two guesses are tried.  If a guess leads to an
order, this order is a proof.  If no guess does, or if the empty string was put or appended, the search decides.

An operation without an answer that no get shows is left out, because an order remains an order without it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from checkers.base.checker import Budget
from checkers.models.known_object import CHANGES, SHOWS, ObjectFinding, by_search, searched
from checkers.models.model import NEVER, REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.search import demand_explanation, first_wrong
from checkers.models.witnesses import Decided, NoOrder

PUT, APPEND, GET = "put", "append", "get"
_BEYOND: Final = ("no prefix of anything read",)


def step(state: State, operation: Operation) -> object:
    if operation.f == GET:
        return state if not operation.returned or state == _string(operation, operation.output) else REFUSED
    given = _string(operation, operation.input)
    return given if operation.f == PUT else _BEYOND if state == _BEYOND else str(state) + given


def _string(operation: Operation, value: Hashable) -> str:
    """Return a value of an operation; "" for nil.  Raises WrongOperation if it is no string."""
    if value is None:
        return ""
    if not isinstance(value, str):
        words = f"index {operation.call}: {operation.f} of a key-value store has the value {value!r:.60}"
        raise WrongOperation(f"{words}, which is no string")
    return value


def demand_strings(operations: Sequence[Operation]) -> None:
    """Raise WrongOperation for a value that is no string."""
    for operation in operations:
        if operation.f != "get":
            _string(operation, operation.input)


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    demand_strings(operations)  # the search may never reach the wrong value
    read = sorted({_string(o, o.output) for o in operations if o.f == "get" and o.returned})

    def one_of(state: State) -> State:
        if state == _BEYOND:
            return state
        at = bisect_left(read, str(state))
        return state if at < len(read) and read[at].startswith(str(state)) else _BEYOND

    return one_of


KV = Model("kv", init=str, step=step, observers=frozenset({"get"}), canonical=canonical)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one key.  Raises WrongOperation."""
    demand_strings(operations)
    found = has_order(operations, KV)
    if found is None:
        finding = by_search(KV, operations, budget)
    else:
        finding = ObjectFinding(steps=len(operations))
        if not found:
            culprit = first_wrong(operations, lambda cut: has_order(cut, KV) is False)
            finding = replace(finding, violations=(NoOrder(KV, culprit.ends),))
    if finding.violations and (impossible := from_nowhere(operations)) is not None:
        return replace(finding, violations=(impossible,))
    return finding


LENGTH_MAX = 1_000_000
"""Maximum total length of the strings of gets in which `from_nowhere` looks for impossible strings."""


def from_nowhere(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of the first get whose string no puts and appends can produce; None if there is none."""
    writes = [o for o in operations if o.f != "get" and o.input]
    looked_at = 0
    for get in sorted((o for o in operations if o.f == "get" and o.output), key=lambda o: o.ret or 0):
        shown = str(get.output)
        if (looked_at := looked_at + len(shown)) > LENGTH_MAX:
            return None
        if _is_made_of(shown, [o for o in writes if o.call < (get.ret or 0)]):
            continue
        words = f"a get answered {text_of(shown)}, which no puts and appends can have produced"
        right, why = "a string of values that had been written", "A put or append that failed did not happen"
        never = Model("kv", init=str, step=lambda state, operation: REFUSED)
        return Decided("value from nowhere", words, [get], get, right, never, why=why)
    return None


def _is_made_of(text: str, writes: Sequence[Operation]) -> bool:
    """Return True if a sequence of appends, with or without a put before it, produces the text."""
    ends = {0} | {len(str(o.input)) for o in writes if o.f == "put" and text.startswith(str(o.input))}
    appended = {str(o.input) for o in writes if o.f == "append"}
    lengths = {len(value) for value in appended}
    for at in range(len(text)):
        if at in ends:
            ends |= {at + length for length in lengths if text[at : at + length] in appended}
    return len(text) in ends


def no_string(operation: Operation) -> str:
    """Return the reason why the answer of a get is no string, or ""."""
    if operation.f != "get" or isinstance(operation.output, str | None):
        return ""
    return f"a get of a key-value store answered {text_of(operation.output)}, which is no string"


_QUESTION = "Is there one order of all gets, puts and appends that explains every answer?"
KV_OBJECT = replace(
    searched(KV, "Key-value store", _QUESTION),
    judge=judge,
    functions={GET: SHOWS, PUT: CHANGES, APPEND: CHANGES},
    noun="a key-value store",
    odd_answer=no_string,
)


BEGINNING = -1
"""An index before all events; the first generation begins there."""


class _EmptyWrites(Exception):
    """The empty string was put or appended, so strings do not show all values of which they consist."""


class _NoOrder(Exception):
    """No order was found.  If no guess was made, none exists."""


_Option = TypeVar("_Option")


@dataclass(slots=True)
class _Guess:
    """A rule that always picks the first, or always the last, of several options.

    made: True once there was more than one option
    """

    last: bool
    made: bool = False

    def of(self, options: Sequence[_Option]) -> _Option:
        """Return the picked option.  Raises _NoOrder if there is no option."""
        if not options:
            raise _NoOrder
        self.made = self.made or len(options) > 1
        return options[-1 if self.last else 0]


def has_order(operations: Sequence[Operation], model: Model) -> bool | None:
    """Return True if the operations of one key have an order, False if they have none.

    Returns None if it is not certain which writes the gets show.  Raises Disagreement if the order that was found does
    not explain the answers.

    operations: operations of one key, in order of call
    model: the model that replays the order
    """
    for last in (True, False):
        guess = _Guess(last)
        try:
            order = _order(operations, guess)
        except _EmptyWrites:
            return None
        except _NoOrder:
            if not guess.made:
                return False
            continue
        demand_explanation(operations, order, model)
        return True
    return None


@dataclass(slots=True)
class _Generation:
    """A generation of the string.

    root: the put that began it; None for the generation that begins empty
    gets: the gets that show it
    values: the appended values that gets show, in order
    appends: the appends that wrote `values`
    """

    root: Operation | None
    gets: list[Operation] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    appends: list[Operation] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return the length of the string with which the generation begins."""
        return 0 if self.root is None else len(_given(self.root))

    def in_order(self) -> list[Operation]:
        """Return its operations in their certain order.  Raises _NoOrder if this order contradicts real time."""
        written = [] if self.root is None else [self.root]
        written += self.appends
        lengths = [self.length]
        for append in self.appends:
            lengths.append(lengths[-1] + len(_given(append)))
        place = {length: at for at, length in enumerate(lengths)}
        after: list[list[Operation]] = [[] for _ in lengths]
        for get in self.gets:
            if (shown := len(_shown(get))) not in place:
                raise _NoOrder  # the get shows only part of a value
            after[place[shown]].append(get)
        first = [] if self.root is None else [self.root]
        order = first + after[0]
        for append, gets in zip(self.appends, after[1:], strict=True):
            order.append(append)
            order += gets
        latest = -1
        for operation in order:
            latest = max(latest, operation.call)
            if operation.ends < latest:
                raise _NoOrder
        return order


class _Block(NamedTuple):
    """Consecutive operations of an order (see the docstring of the module for first_return and last_call)."""

    operations: Sequence[Operation]
    first_return: int
    last_call: int


def _order(operations: Sequence[Operation], guess: _Guess) -> list[Operation]:
    """Return an order of all operations that returned or that a get shows.  Raises _EmptyWrites or _NoOrder."""
    puts = [o for o in operations if o.f == PUT]
    appends = [o for o in operations if o.f == APPEND]
    gets = [o for o in operations if o.f == GET and o.returned]
    if any(not _given(o) for o in (*puts, *appends)):
        raise _EmptyWrites
    generations = _generations(puts, appends, gets, guess)
    _name_appends(generations, appends, guess)
    blocks = []
    shown: set[int] = set()
    for generation in generations:
        order = generation.in_order()
        shown.update(o.call for o in order)
        first = BEGINNING if generation.root is None else min(o.ends for o in order)
        blocks.append(_Block(order, first, max(o.call for o in order)))
    others = [o for o in operations if o.returned and o.f != GET and o.call not in shown]
    blocks += [_Block([o], o.ends, o.call) for o in others]
    return [operation for block in _one_after_another(blocks) for operation in block.operations]


def _one_after_another(blocks: Sequence[_Block]) -> list[_Block]:
    """Return the blocks in an order.  Raises _NoOrder."""
    filling = sorted((b for b in blocks if b.first_return < b.last_call), key=lambda b: b.first_return)
    if any(before.last_call > after.first_return for before, after in pairwise(filling)):
        raise _NoOrder
    begins = [b.first_return for b in filling]
    moments = [(b.first_return, b.last_call, b) for b in filling]
    for block in blocks:
        if block.first_return < block.last_call:
            continue
        around = bisect_left(begins, block.last_call) - 1
        moment = max(block.last_call, filling[around].last_call) if around >= 0 else block.last_call
        if moment > block.first_return:
            raise _NoOrder
        moments.append((moment, block.last_call, block))
    return [block for *_, block in sorted(moments, key=lambda each: each[:2])]


# Writes that gets show


def _generations(
    puts: Sequence[Operation], appends: Sequence[Operation], gets: Sequence[Operation], guess: _Guess
) -> list[_Generation]:
    """Return the generations that were read.  Raises _NoOrder."""
    roots = _Roots(puts, appends)
    found: dict[int, _Generation] = {}
    for get in gets:
        root = guess.of(roots.of(get))
        at = BEGINNING if root is None else root.call
        if at not in found:
            found[at] = _Generation(root)
        found[at].gets.append(get)
    words = {_given(o) for o in appends}
    lengths = sorted({len(word) for word in words})
    for generation in found.values():
        longest = max(map(_shown, generation.gets), key=len)
        if not all(longest.startswith(_shown(get)) for get in generation.gets):
            raise _NoOrder
        generation.values = _cut(longest, generation.length, words, lengths, guess)
    return list(found.values())


class _Roots:
    """The puts whose value may be the beginning of a get."""

    def __init__(self, puts: Sequence[Operation], appends: Sequence[Operation]) -> None:
        self._by_value: dict[str, list[Operation]] = {}
        for put in puts:
            self._by_value.setdefault(_given(put), []).append(put)
        self._first_call: dict[str, int] = {}
        for append in appends:
            self._first_call.setdefault(_given(append), append.call)
        self._lengths = sorted({len(value) for value in (*self._by_value, *self._first_call)})
        returned = sorted((o for o in puts if o.returned), key=lambda o: o.call)
        self._calls = [o.call for o in returned]
        self._return_from = [NEVER] * (len(returned) + 1)
        for at in range(len(returned) - 1, -1, -1):
            self._return_from[at] = min(self._return_from[at + 1], returned[at].ends)

    def of(self, get: Operation) -> list[Operation | None]:
        """Return the puts that a get may show; None in the list stands for the generation that begins empty."""
        shown, returned = _shown(get), get.ends
        begins_empty = not shown
        roots: list[Operation | None] = []
        for length in self._lengths:
            if length > len(shown):
                break
            first = shown[:length]
            begins_empty = begins_empty or self._first_call.get(first, NEVER) < returned
            roots += self._by_value.get(first, ())
        if begins_empty:
            roots.insert(0, None)
        return [root for root in roots if self._may_show(root, get)]

    def _may_show(self, root: Operation | None, get: Operation) -> bool:
        """Return True if the put was called before the get returned and no other put lies entirely between them."""
        if root is not None and root.call > get.ends:
            return False
        after = BEGINNING if root is None else root.ends
        return self._return_from[bisect_right(self._calls, after)] > get.call


def _cut(text: str, start: int, words: set[str], lengths: Sequence[int], guess: _Guess) -> list[str]:
    """Split the text from `start` on into values.  Raises _NoOrder if this is impossible."""
    values: list[str] = []
    can_end: set[int] | None = None
    while start < len(text):
        fitting = [length for length in lengths if text[start : start + length] in words]
        if len(fitting) > 1:
            can_end = can_end or _ends_of_values(text, start, words, lengths)
            fitting = [length for length in fitting if start + length in can_end]
        values.append(text[start : start + guess.of(fitting)])
        start += len(values[-1])
    return values


def _ends_of_values(text: str, start: int, words: set[str], lengths: Sequence[int]) -> set[int]:
    """Return the positions from `start` on at which a value may end, such that other values fill the remaining text."""
    found = {len(text)}
    for at in range(len(text) - 1, start, -1):
        if any(at + length in found and text[at : at + length] in words for length in lengths):
            found.add(at)
    return found


def _name_appends(generations: Sequence[_Generation], appends: Sequence[Operation], guess: _Guess) -> None:
    """Assign an append to each shown value.  Raises _NoOrder."""
    by_value: dict[str, list[Operation]] = {}
    for append in appends:
        by_value.setdefault(_given(append), []).append(append)
    repeated: dict[str, list[tuple[int, int]]] = {}
    shown: set[str] = set()
    for number, generation in enumerate(generations):
        generation.appends = [by_value[value][0] for value in generation.values]
        for place, value in enumerate(generation.values):
            if len(by_value[value]) > 1:
                repeated.setdefault(value, []).append((number, place))
            elif value in shown:
                raise _NoOrder
            else:
                shown.add(value)
    if not repeated:
        return
    concerned = {number for places in repeated.values() for number, _ in places}
    windows = {number: list(_windows(generations[number], by_value)) for number in concerned}
    for value, places in repeated.items():
        choices = {}
        for number, place in places:
            earliest, latest = windows[number][place]
            choices[number, place] = {o.call for o in by_value[value] if o.call < latest and o.ends > earliest}
        by_call = {o.call: o for o in by_value[value]}
        for (number, place), call in _chosen(choices, by_call, guess).items():
            generations[number].appends[place] = by_call[call]


def _windows(generation: _Generation, by_value: Mapping[str, Sequence[Operation]]) -> Iterator[tuple[int, int]]:
    """Yield, for each value, (last call of operations certainly before it, first return of operations behind it)."""
    certain = [by_value[value][0] if len(by_value[value]) == 1 else None for value in generation.values]
    ends = [generation.length]
    for value in generation.values:
        ends.append(ends[-1] + len(value))
    called = [BEGINNING] * (len(ends) + 1)
    returned = [NEVER] * (len(ends) + 1)
    for get in generation.gets:
        at = bisect_left(ends, len(_shown(get)))
        called[at] = max(called[at], get.call)
        returned[at] = min(returned[at], get.ends)
    latest = BEGINNING if generation.root is None else generation.root.call
    before = []
    for at, append in enumerate(certain):
        latest = max(latest, called[at])
        before.append(latest)
        latest = max(latest, BEGINNING if append is None else append.call)
    first = NEVER
    behind = []
    for at in range(len(certain) - 1, -1, -1):
        first = min(first, returned[at + 1])
        behind.append(first)
        one = certain[at]
        first = min(first, NEVER if one is None else one.ends)
    return zip(before, reversed(behind), strict=True)


def _chosen(
    choices: dict[tuple[int, int], set[int]], by_call: Mapping[int, Operation], guess: _Guess
) -> dict[tuple[int, int], int]:
    """Return {place of a value: call of the append chosen for it}.  Raises _NoOrder.

    choices: place of a value -> calls of the appends that may have written it
    by_call: call -> append
    """
    _in_one_string(sorted(choices), choices, {call: append.ends for call, append in by_call.items()})
    chosen: dict[tuple[int, int], int] = {}
    left = set(choices)
    while left:
        at = min(left, key=lambda each: (len(choices[each]), each))
        chosen[at] = guess.of(sorted(choices[at]))
        left.remove(at)
        for other in left:
            choices[other].discard(chosen[at])
    return chosen


def _in_one_string(
    places: Sequence[tuple[int, int]], choices: dict[tuple[int, int], set[int]], return_of: Mapping[int, int]
) -> None:
    """Drop choices that real time excludes if one string shows a value several times."""
    together = [(one, next_) for one, next_ in pairwise(places) if one[0] == next_[0]]
    for before, behind in together:
        choices[behind] = {c for c in choices[behind] if any(return_of[c] > o for o in choices[before] - {c})}
    for before, behind in reversed(together):
        choices[before] = {c for c in choices[before] if any(return_of[o] > c for o in choices[behind] - {c})}


def _given(operation: Operation) -> str:
    return str(operation.input or "")


def _shown(operation: Operation) -> str:
    return str(operation.output or "")
