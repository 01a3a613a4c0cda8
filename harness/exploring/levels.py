"""States of a level as arrays, and all steps of all these states at once.

A state is a row of indices.  Each index stands for a part (`Parts`), numbered by the order in which this process first
saw the parts; 0 stands for none.  A step reads only a few columns of a row.  So each rule is computed once for each
combination of values that occurs, and its result is looked up for all rows at once (`Memo`):

    the steps of a call     the call, its server, and the kinds of steps that are left
    the end of a call       the call with its answer, and its client
    the steps of a voter    the voter, and the remaining budgets
    new promises            the change, the promises before it, and the logs if a leader advances its mark
    remaining budgets       the budgets before the step, and the budgets that the step uses

Arrays only distribute the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.exploring.parts import Broken, CallUnderWay, Rest
from harness.exploring.steps import Change, ClusterSteps, ExploredState, Step
from harness.exploring.voter import ExploredVoter
from system_under_test.kraft.raft.messages import Batch

Ints: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.uint64]

FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""Random odd numbers for hashing rows to the slots of an index."""
SLOTS_A_ROW = 3
"""Minimum number of slots per row; a smaller index is doubled."""


Kind = TypeVar("Kind", np.int64, np.uint64)


class GrowingTable(Generic[Kind]):
    """Rows that arrive one after another, stored in one array."""

    def __init__(self, width: int, kind: type[Kind]) -> None:
        self._rows: NDArray[Kind] = np.zeros((256, width), kind)
        self.count = 0

    @property
    def rows(self) -> NDArray[Kind]:
        return self._rows[: self.count]

    def add(self, rows: ArrayLike, count: int = 1) -> int:
        """Append rows, and return the index of the first one."""
        first, self.count = self.count, self.count + count
        if self.count > len(self._rows):
            self._rows = np.resize(self._rows, (2 * self.count, self._rows.shape[1]))
        self._rows[first : self.count] = rows
        return first


class Index:
    """The index of each row of a table: a hash table with open addressing, for many rows at once.

    Rows of one number are keys, which are hashes already.
    """

    def __init__(self, width: int) -> None:
        self.table = GrowingTable(width, np.uint64)
        self._slots = np.zeros(1 << 12, np.int64)

    def find(self, rows: Keys) -> Ints:
        """Return the index of each row; -1 if the row is missing."""
        if not self.table.count:
            return np.full(len(rows), -1)
        table, slots = self.table.rows, self._first_slots(rows)
        found, left = np.full(len(rows), -1), np.arange(len(rows))
        while left.size:
            at = self._slots[slots] - 1
            same, taken = at >= 0, at >= 0
            for column in range(rows.shape[1]):
                same &= table[at, column] == rows[left, column]
            found[left[same]] = at[same]
            on = taken & ~same
            left, slots = left[on], (slots[on] + 1) & (len(self._slots) - 1)
        return found

    def add(self, rows: Keys) -> None:
        """Append distinct rows that do not exist yet."""
        first = self.table.add(rows, len(rows))
        if self.table.count * SLOTS_A_ROW > len(self._slots):
            self._slots = np.zeros(4 * len(self._slots), np.int64)
            first = 0
        self._fill(first)

    def _fill(self, first: int) -> None:
        rows = self.table.rows[first:]
        slots, places = self._first_slots(rows), np.arange(first + 1, first + 1 + len(rows))
        while places.size:
            free = self._slots[slots] == 0
            self._slots[slots[free]] = places[free]  # if several rows share a slot, the last row gets the slot
            on = self._slots[slots] != places
            slots, places = (slots[on] + 1) & (len(self._slots) - 1), places[on]

    def _first_slots(self, rows: Keys) -> Ints:
        hashed = np.zeros(len(rows), np.uint64)
        for column in range(rows.shape[1]):
            hashed = (hashed ^ rows[:, column]) * FACTORS[column % len(FACTORS)]
            hashed ^= hashed >> np.uint64(32)
        return (hashed & np.uint64(len(self._slots) - 1)).astype(np.int64)


class Memo:
    """A function of integers that is computed once for each combination, and looked up for many combinations at once.

    width: number of its arguments
    """

    def __init__(self, width: int, compute: Callable[..., int]) -> None:
        self._compute = compute
        self._index = Index(width)
        self._values = GrowingTable(1, np.int64)

    def __call__(self, *columns: Ints) -> Ints:
        """Return the value for each row of the columns.  The columns have one shape, or are broadcast to one."""
        spread = np.broadcast_arrays(*columns)
        rows = np.stack([column.ravel() for column in spread], axis=1).view(np.uint64)
        at = self._index.find(rows)
        if (unknown := at < 0).any():
            asked = list(dict.fromkeys(map(tuple, rows[unknown].tolist())))
            self._values.add([[self._compute(*each)] for each in asked], len(asked))
            self._index.add(np.array(asked, np.uint64))
            at[unknown] = self._index.find(rows[unknown])
        values: Ints = self._values.rows[at, 0].reshape(spread[0].shape)
        return values


class States(NamedTuple):
    """States, one per row. calls, late: in the order in which the calls were sent, padded with zeros."""

    voters: Ints
    calls: Ints
    late: Ints
    promises: Ints
    rest: Ints

    def only(self, which: Ints | slice) -> States:
        return States(*(each[which] for each in self))


def joined(pieces: Sequence[States]) -> States:
    """Return the states of all pieces, concatenated."""
    columns = []
    for each in zip(*pieces, strict=True):
        width = max(piece.shape[1] for piece in each)
        columns.append(np.concatenate([np.pad(piece, ((0, 0), (0, width - piece.shape[1]))) for piece in each]))
    return States(*columns)


class Expansion(NamedTuple):
    """New states that follow from a piece of a level, in the order of the steps to them.

    parents: for each new state, the row of the piece from which it is reached
    steps: for each new state, the step to it
    broken: (row, step, rule) of the first step that violated a rule; [] if no step did
    transitions: total number of steps
    """

    keys: Keys
    states: States
    parents: Ints
    steps: Ints
    broken: list[tuple[int, int, str]]
    transitions: int


class Levels:
    """All steps of many states at once.

    check: raises Broken for (voters, calls) of a state from which no leader can be elected
    """

    def __init__(self, steps: ClusterSteps, check: Callable[[Sequence[int], Sequence[int]], None] | None) -> None:
        self.steps_met: dict[Step, int] = {}
        """Known step -> its index."""
        self._steps = steps
        self._check = check
        self._servers = len(steps.ids)
        self._reads_clients = int(steps.budgets.insides > 0)
        """1 if the steps of a call also depend on its client."""
        # Parts
        self._places: dict[int, int] = {0: 0}
        self._numbers = GrowingTable(1, np.uint64)
        self._sums = GrowingTable(len(steps.names), np.uint64)
        self._traits = GrowingTable(3, np.int64)
        for table in (self._numbers, self._sums, self._traits):
            table.add(0)
        self._logs: dict[tuple[Batch, ...], int] = {(): 0}
        self._conditions: dict[tuple[object, ...], int] = {}
        # What steps change
        self._changes = [Change(steps.parts)]
        self._rows = GrowingTable(3 * self._servers + len(Flags._fields), np.int64)
        self._rows.add(0)
        self._used: dict[tuple[object, ...], int] = {((), None): 0}
        self._members = GrowingTable(2, np.int64)
        """(change, step) of each step of a site: an object with steps."""
        self._sites = GrowingTable(2, np.int64)
        """(first member, number of members) of each site: a call, a voter, or the links."""
        self._sites.add(0)
        self._broken: list[str] = []
        # The rules
        self._of_call = Memo(4, self._steps_of_call)
        self._of_voter = Memo(2, self._steps_of_voter)
        self._heard = Memo(2, self._hear)
        self._of_links = Memo(1, self._steps_of_links)
        self._promised = Memo(2 + self._servers, self._promise)
        self._left = Memo(2, self._rest_after)
        self._late = Memo(1, lambda call: self._part(steps.late(self._number(call))))
        self._unanswered = Memo(1, lambda call: self._part(steps.replied(self._number(call), None)))

    # States and the values they consist of

    def row(self, state: ExploredState) -> States:
        """Return one state as arrays."""
        numbers = (state.voters, state.calls, state.late, (state.promises,), (state.rest,))
        return States(*(np.array([[self._part(each) for each in group]], np.int64).reshape(1, -1) for group in numbers))

    def portable(self, states: States) -> States:
        """Return states for another process: each index is replaced by the part's number, equal in all processes."""
        return States(*(self._numbers.rows[each, 0] for each in states))

    def local(self, states: States) -> States:
        """Return states of another process as states of this process, which has already added their parts."""
        found = []
        for each in states:
            numbers, at = np.unique(each, return_inverse=True)
            found.append(
                np.array([self._part(number) for number in numbers.tolist()], np.int64)[at].reshape(each.shape)
            )
        return States(*found)

    def keys(self, states: States) -> Keys:
        """Return the key of each state: the minimum of its sums over all ways to name the voters."""
        sums = self._sums.rows
        totals = np.zeros((len(states.rest), sums.shape[1]), np.uint64)
        for group in states:
            for column in range(group.shape[1]):
                if (places := group[:, column]).any():
                    totals += sums[places]
        least: Keys = totals.min(axis=1)
        return least

    def _number(self, place: int) -> int:
        return int(self._numbers.rows[place, 0])

    def _part(self, number: int) -> int:
        """Return the index of a part; an unknown part is added at the end."""
        if number not in self._places:
            self._places[number] = self._numbers.add(number)
            self._sums.add(self._steps.parts.sums[number])
            self._traits.add(self._trait(number))
        return self._places[number]

    def _trait(self, number: int) -> tuple[int, int, int]:
        """Return the properties of a part on which steps depend.

        For a call: (client, or 0 if the client has given up; server; 1 if answered).  For a voter: (log, 0, 0).  For
        the remaining budgets: (condition of calls, 0, 0).
        """
        match self._steps.parts.values[number]:
            case CallUnderWay(lane=(client, server, _), reply=reply, late=late):
                return (0 if late else client, server, int(reply is not None))
            case ExploredVoter(log=log):
                return (self._logs.setdefault(log.batches, len(self._logs)), 0, 0)
            case Rest():
                return (self._conditions.setdefault(self._steps.condition(number), self._numbers.count - 1), 0, 0)
        return (0, 0, 0)

    # Steps

    def expand(self, states: States, known: Index) -> Expansion:
        """Compute every step of every state, up to the first state with a step that violates a rule.

        known: keys of known states
        """
        parents, columns, changes, steps = self._every_step(states)
        after = self._carried_out(states.only(parents), columns, changes)
        ends = self._ends(after, changes)
        after = self._carried_out(after, columns, ends)
        promised, past = after.promises[:, 0], self._flags(changes).past | self._flags(ends).past
        broken = [(int(at), self._broken[-1 - promised[at]]) for at in np.flatnonzero(promised < 0)]
        kept = np.flatnonzero((promised >= 0) & (past == 0))
        after = after.only(kept)
        keys = self.keys(after)
        unknown = np.flatnonzero(known.find(keys[:, None]) < 0)
        firsts = unknown[np.sort(np.unique(keys[unknown], return_index=True)[1])]
        if self._check is not None:
            dead = self._without_a_leader(after.only(firsts))
            broken = sorted([*broken, *((int(kept[firsts[at]]), rule) for at, rule in dead.items())])
            firsts = np.delete(firsts, list(dead))
        transitions = len(parents)
        if broken:
            transitions = int(np.searchsorted(parents, parents[broken[0][0]], side="right"))
            firsts = firsts[kept[firsts] < transitions]
        voters, calls, late, promises, rest = after.only(firsts)
        states, met = States(voters, _packed(calls), _packed(late), promises, rest), kept[firsts]
        broken_by = [(int(parents[at]), int(steps[at]), rule) for at, rule in broken[:1]]
        return Expansion(keys[firsts], states, parents[met], steps[met], broken_by, transitions)

    def _every_step(self, states: States) -> tuple[Ints, Ints, Ints, Ints]:
        """Return, for each step, the row of its state, the column of its site, its change, and the step."""
        traits = self._traits.rows
        waiting = np.concatenate([states.calls, states.late], axis=1)
        each, servers = np.arange(len(waiting))[:, None], np.pad(states.voters, ((0, 0), (1, 0)))
        clients = servers[each, traits[waiting, 0]] * self._reads_clients
        reads = (clients, servers[each, traits[waiting, 1]], traits[states.rest, 0])
        there = waiting > 0
        # two late copies of the same request are possible
        for column in range(states.calls.shape[1] + 1, waiting.shape[1]):
            there[:, column] &= (waiting[:, states.calls.shape[1] : column] != waiting[:, [column]]).all(axis=1)
        of_calls = np.zeros_like(waiting)
        of_calls[there] = self._of_call(*(column[there] for column in np.broadcast_arrays(waiting, *reads)))
        of_voters = self._of_voter(states.voters, states.rest)
        sites = np.concatenate([of_calls, of_voters, self._of_links(states.rest)], axis=1)
        first, count = self._sites.rows[sites.ravel()].T
        site = np.repeat(np.arange(sites.size), count)
        member = np.arange(len(site)) + np.repeat(first - np.cumsum(count) + count, count)
        changes, steps = self._members.rows[member].T
        return site // sites.shape[1], site % sites.shape[1], changes, steps

    def _ends(self, states: States, changes: Ints) -> Ints:
        """Return the reactions of clients whose calls have ended; 0 for states without such a call."""
        heard, ends = self._flags(changes).heard, np.zeros_like(changes)
        there = np.flatnonzero((heard > 0) & (states.promises[:, 0] >= 0))
        clients = self._traits.rows[heard[there] >> 1, 0]
        ends[there] = self._heard(heard[there], states.voters[there, clients - 1])
        return ends

    def _flags(self, changes: Ints) -> Flags:
        return Flags(*self._rows.rows[changes, 3 * self._servers :].T)

    def _carried_out(self, before: States, columns: Ints, changes: Ints) -> States:
        """Apply a change to each state.  A promise below 0 stands for a violated rule. columns: calls to remove."""
        voters, adds = np.split(self._rows.rows[changes, : 3 * self._servers], [self._servers], axis=1)
        flags = self._flags(changes)
        promises, some = before.promises.copy(), np.flatnonzero(changes)
        logs = self._traits.rows[before.voters[some], 0] * flags.counts_logs[some, None]
        promises[some, 0] = self._promised(changes[some], promises[some, 0], *logs.T)
        calls = np.concatenate([before.calls, adds], axis=1)
        late = np.concatenate([before.late, flags.adds_late[:, None]], axis=1)
        taken, width = np.flatnonzero(flags.takes), before.calls.shape[1]
        of_calls = columns[taken] < width
        calls[taken[of_calls], columns[taken[of_calls]]] = 0
        late[taken[~of_calls], columns[taken[~of_calls]] - width] = 0
        if (ends := np.flatnonzero(flags.disconnects)).size:
            calls[ends], others = self._unplugged(calls[ends], flags.disconnects[ends, None])
            late = np.concatenate([late, np.zeros_like(calls)], axis=1)
            late[ends, -calls.shape[1] :] = others
        rest, using = before.rest.copy(), np.flatnonzero(flags.uses)
        rest[using, 0] = self._left(rest[using, 0], flags.uses[using])
        return States(np.where(voters > 0, voters, before.voters), calls, late, promises, rest)

    def _unplugged(self, calls: Ints, voters: Ints) -> tuple[Ints, Ints]:
        """End the connections of one voter in each row.  Its requests arrive late, its answers never arrive."""
        client, server, answered = np.moveaxis(self._traits.rows[calls], -1, 0)
        asked = client == voters
        unsent = ~asked & (server == voters) & (answered > 0)
        kept, late = np.where(asked, 0, calls), np.zeros_like(calls)
        late[asked & (answered == 0)] = self._late(calls[asked & (answered == 0)])
        kept[unsent] = self._unanswered(calls[unsent])
        return kept, late

    def _without_a_leader(self, states: States) -> dict[int, str]:
        """Return {row of a state from which no leader can be elected: violated rule}."""
        assert self._check is not None
        numbers, found = self.portable(states), dict[int, str]()
        for at, (voters, calls) in enumerate(zip(numbers.voters.tolist(), numbers.calls.tolist(), strict=True)):
            try:
                self._check(voters, [each for each in calls if each])
            except Broken as rule:
                found[at] = str(rule)
        return found

    # The rules, each computed once per combination

    def _steps_of_call(self, call: int, client: int, server: int, condition: int) -> int:
        number = self._number(call)
        under_way = self._steps.parts.call(number)
        voters = [0] * self._servers
        voters[under_way.lane[1] - 1] = self._number(server)
        if client:
            voters[under_way.lane[0] - 1] = self._number(client)
        calls, late = ((), (number,)) if under_way.late else ((number,), ())
        state = ExploredState(tuple(voters), calls, late, 0, self._number(condition))
        return self._site(state, self._steps.steps_of_call(state, number))

    def _steps_of_voter(self, voter: int, rest: int) -> int:
        number, voters = self._number(voter), [0] * self._servers
        id = self._steps.parts.node(number).id
        voters[id - 1] = number
        state = ExploredState(tuple(voters), (), (), 0, self._number(rest))
        return self._site(state, self._steps.steps_of_voter(state, id))

    def _steps_of_links(self, rest: int) -> int:
        state = ExploredState((), (), (), 0, self._number(rest))
        return self._site(state, self._steps.steps_of_links(state.rest))

    def _site(self, state: ExploredState, steps: Iterable[Step]) -> int:
        members = []
        for step in steps:
            change = self._steps.look(state, step)
            members.append((self._change(change), self.steps_met.setdefault(step, len(self.steps_met))))
        return self._sites.add((self._members.add(members, len(members)) if members else 0, len(members)))

    def _hear(self, heard: int, client: int) -> int:
        return self._change(self._steps.heard(self._number(heard >> 1), bool(heard & 1), self._number(client)))

    def _change(self, change: Change) -> int:
        if change.place is None:
            change.place = len(self._changes)
            self._changes.append(change)
            self._rows.add(self._row(change))
        return change.place

    def _row(self, change: Change) -> tuple[int, ...]:
        voters, place = [0] * self._servers, self._part
        for id, voter, _ in change.events:
            voters[id - 1] = place(voter)
        adds = [place(each) for each in change.adds] + [0] * (2 * self._servers - len(change.adds))
        late, used = place(change.adds_late), self._used.setdefault((change.uses, change.cuts), len(self._used))
        heard = 0 if change.heard is None else place(change.heard[0]) << 1 | change.heard[1]
        flags = (int(change.take > 0), late, used, change.past, change.disconnects, change.counts_logs, heard)
        return (*voters, *adds, *flags)

    def _promise(self, change: int, promised: int, *logs: int) -> int:
        every = list(self._logs) if any(logs) else [()]
        try:
            return self._part(self._changes[change].promised_after(self._number(promised), [every[at] for at in logs]))
        except Broken as rule:
            self._broken.append(str(rule))
            return -len(self._broken)

    def _rest_after(self, rest: int, use: int) -> int:
        uses, cuts = list(self._used)[use]
        return self._part(self._steps.rest_after(self._number(rest), uses, cuts))  # type: ignore[arg-type]


class Flags(NamedTuple):
    """Columns of a change, after its voters and the calls that it adds.

    takes: 1 if the change removes its own call
    adds_late: a call that becomes late; 0: none
    uses: the budgets that the change uses; 0: none
    past: 1 if an epoch beyond the last one is entered
    disconnects: a voter whose connections end; 0: none
    counts_logs: 1 if a leader advances its mark, so logs are compared
    heard: twice the number of the call that ends for its client, plus 1 if the call is lost; 0: none
    """

    takes: Ints
    adds_late: Ints
    uses: Ints
    past: Ints
    disconnects: Ints
    counts_logs: Ints
    heard: Ints


def _packed(rows: Ints) -> Ints:
    """Return the rows with all zeros moved to the end."""
    order = np.argsort(rows == 0, axis=1, kind="stable")
    width = int(np.count_nonzero(rows, axis=1).max(initial=0))
    return np.take_along_axis(rows, order, axis=1)[:, :width]
