"""The levels that a tiny history fits, by carrying out every order of its transactions.

No dependencies, no cycles: an order of commits is chosen, and with it the transactions of unknown outcome that
happened.  Then each level says what its transactions may read.

    serializable, repeatable-read   the state in which they commit
    snapshot-isolation              the state after some prefix of the order, if none of their keys is written after it
    read-committed                  each read for itself, a version committed before
    read-atomic, causal             the same; one version of each key, and none older than one that is visible
    read-uncommitted                any value that was written; lists that agree show the order of the commits

Values may repeat: then a read may show any version that looks like it.  (Definitions: Adya 1999; Cerone & Gotsman 2016;
Biswas & Enea 2019.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, dropwhile, permutations, product
from typing import Any

from checkers.base.history import Event, Type
from checkers.transactions.anomalies import MODELS, REALTIME, VARIANTS, model_name
from checkers.transactions.read import Model

NEVER = 10**9
BASES = ("read-uncommitted", "read-committed", "read-atomic", "causal", "snapshot-isolation", "serializable")


@dataclass(frozen=True, eq=False)
class Executed:
    """A transaction.  steps: (f, key, value), with lists as tuples; nothing read is () or None."""

    process: int
    status: Type
    invoked: int
    completed: int
    steps: tuple[tuple[str, str, Any], ...]

    def written(self, key: str) -> list[Any]:
        return [value for f, k, value in self.steps if f != "r" and k == key]

    def keys_written(self) -> set[str]:
        return {key for f, key, _ in self.steps if f != "r"}


def executed(events: Sequence[Event], model: Model) -> list[Executed]:
    found: list[Executed] = []
    open_by: dict[int, int] = {}
    for e in events:
        steps = tuple((f, k, _plain(f, v, model)) for f, k, v in json.loads(e.payload or "[]"))
        if e.type is Type.INVOKE:
            open_by[e.process] = len(found)
            found.append(Executed(e.process, Type.INFO, e.index, NEVER, steps))
            continue
        at = open_by.pop(e.process)
        ended = NEVER if e.type is Type.INFO else e.index
        done = steps if e.type is Type.OK else found[at].steps
        found[at] = Executed(e.process, e.type, found[at].invoked, ended, done)
    return found


def _plain(f: str, value: Any, model: Model) -> Any:
    return tuple(value or ()) if f == "r" and model == "list-append" else value


def levels_that_fit(txns: Sequence[Executed], model: Model) -> set[str]:
    """The levels of MODELS that some order of the commits fulfils."""
    fits: set[tuple[str, str]] = set()
    perhaps = [t for t in txns if t.status is Type.INFO]
    sure = [t for t in txns if t.status is Type.OK]
    for some in chain.from_iterable(combinations(perhaps, n) for n in range(len(perhaps) + 1)):
        for order in permutations([*sure, *some]):
            for variant in VARIANTS if _keeps_time(order) else (VARIANTS[:2] if _keeps_sessions(order) else ("",)):
                left = [base for base in BASES if (base, variant) not in fits]
                if left:
                    run = _Run(order, txns, model, variant)
                    fits |= {(base, variant) for base in left if run.fits(base)}
    fits |= {("repeatable-read", variant) for base, variant in fits if base == "serializable"}
    return {model_name(base, variant) for base, variant in fits} & set(MODELS)


def _keeps_sessions(order: Sequence[Executed]) -> bool:
    return not any(b.process == a.process and b.invoked < a.invoked for a, b in combinations(order, 2))


def _keeps_time(order: Sequence[Executed]) -> bool:
    return _keeps_sessions(order) and not any(b.completed < a.invoked for a, b in combinations(order, 2))


class _Run:
    """An order of commits under one variant.  versions: per key, (writer, what it left or appended), in order."""

    def __init__(self, order: Sequence[Executed], txns: Sequence[Executed], model: Model, variant: str) -> None:
        self._order, self._txns, self._model, self._variant = order, txns, model, variant
        self._place = {t: at for at, t in enumerate(order)}
        self._versions: dict[str, list[tuple[Executed, list[Any]]]] = {}
        for t in order:
            for key in t.keys_written():
                self._versions.setdefault(key, []).append((t, t.written(key)))

    def fits(self, base: str) -> bool:
        answered = [t for t in self._order if t.status is Type.OK]
        match base:
            case "serializable":
                return all(self._reads_state(t, self._place[t]) for t in answered)
            case "snapshot-isolation":
                return all(self._has_snapshot(t) for t in self._order)
            case "read-committed":
                return all(self._reads_committed(t) for t in answered)
            case "read-uncommitted":
                return self._reads_anything(answered)
        return self._sees_what_is_visible(answered, closed=base == "causal")

    # One state

    def _value(self, key: str, before: int) -> Any:
        """What a key holds after so many commits."""
        versions = [values for t, values in self._versions.get(key, []) if self._place[t] < before]
        if self._model == "list-append":
            return tuple(chain.from_iterable(versions))
        return versions[-1][-1] if versions else None

    def _reads_state(self, t: Executed, before: int) -> bool:
        held: dict[str, Any] = {}
        for f, key, value in t.steps:
            now = held[key] if key in held else self._value(key, before)
            if f == "r" and value != now:
                return False
            held[key] = now if f == "r" else (*now, value) if self._model == "list-append" else value
        return True

    def _before(self, t: Executed) -> int:
        """How many commits must be before the start of a transaction."""
        first = 0
        for u, at in self._place.items():
            in_session = u.process == t.process and u.invoked < t.invoked
            if (self._variant and in_session) or (self._variant == REALTIME and u.completed < t.invoked):
                first = max(first, at + 1)
        return first

    def _has_snapshot(self, t: Executed) -> bool:
        mine = self._place[t]
        if t.status is not Type.OK:
            return self._before(t) <= mine  # it may have started just before its commit
        for start in range(self._before(t), mine + 1):
            between = self._order[start:mine]
            if not any(u.keys_written() & t.keys_written() for u in between) and self._reads_state(t, start):
                return True
        return False

    # Visible versions

    def _sees_what_is_visible(self, answered: Sequence[Executed], *, closed: bool) -> bool:
        options = [list(self._views(t)) for t in answered]
        return any(self._is_causal(dict(zip(answered, views, strict=True)), closed) for views in product(*options))

    def _views(self, t: Executed) -> Iterator[dict[str, int]]:
        """Every choice of a version for each key that a transaction reads: its place in the order of the key, or -1."""
        keys = list(dict.fromkeys(key for f, key, _ in t.steps if f == "r"))
        for chosen in product(*([at for at in self._candidates(t, key) if self._shows(t, key, at)] for key in keys)):
            yield {key: at for key, at in zip(keys, chosen, strict=True) if at is not None}

    def _candidates(self, t: Executed, key: str) -> list[int | None]:
        first = next(f for f, k, _ in t.steps if k == key)
        if self._model == "rw-register" and first != "r":
            return [None]
        versions = self._versions.get(key, [])
        before = [at for at, (w, _) in enumerate(versions) if self._place[w] < self._place[t]]
        after_own_append = dropwhile(lambda step: step[:2] != ("append", key), t.steps)
        if any(f == "r" and k == key for f, k, _ in after_own_append):
            return [len(before) - 1]  # a list read shows all earlier appends
        return [-1, *before]

    def _shows(self, t: Executed, key: str, at: int | None) -> bool:
        """Whether all reads of a key show one version, and then what the transaction itself wrote."""
        versions = self._versions.get(key, [])[: 0 if at is None else at + 1]
        if self._model == "list-append":
            held: Any = tuple(chain.from_iterable(values for _, values in versions))
        else:
            held = versions[-1][1][-1] if versions else None
        for f, k, value in t.steps:
            if k != key:
                continue
            if f == "r" and value != held:
                return False
            if f != "r":
                held = (*held, value) if self._model == "list-append" else value
        return True

    def _is_causal(self, views: dict[Executed, dict[str, int]], closed: bool) -> bool:
        seen: dict[Executed, set[Executed]] = {}
        for t in self._order:
            direct = {self._versions[key][at][0] for key, at in views.get(t, {}).items() if at >= 0}
            if self._variant:
                direct |= {u for u in self._order if u.process == t.process and u.invoked < t.invoked}
            if closed:
                direct = direct.union(*(seen[u] for u in direct))
            seen[t] = direct
        for t, view in views.items():
            for key, at in view.items():
                writers = [w for w, _ in self._versions.get(key, [])]
                if any(w in seen[t] for w in writers[at + 1 :]):
                    return False
        return True

    # Single reads

    def _reads_committed(self, t: Executed) -> bool:
        own: dict[str, list[Any]] = {}
        for f, key, value in t.steps:
            if f != "r":
                own.setdefault(key, []).append(value)
            elif not self._is_committed(t, key, value, own.get(key, [])):
                return False
        return True

    def _is_committed(self, t: Executed, key: str, value: Any, own: Sequence[Any]) -> bool:
        versions = [(w, values) for w, values in self._versions.get(key, []) if self._place[w] < self._place[t]]
        if self._model == "rw-register":
            return value is None or value in own or any(values[-1] == value for _, values in versions)
        for count in range(len(versions) + 1):
            shown = tuple(chain.from_iterable(values for _, values in versions[:count]))
            mine = own if count == len(versions) else []
            if any(value == (*shown, *mine[:some]) for some in range(len(mine) + 1)):
                return True
        return False

    def _reads_anything(self, answered: Sequence[Executed]) -> bool:
        read = [(key, value) for t in answered for f, key, value in t.steps if f == "r" and value not in (None, ())]
        if self._model == "rw-register":
            return all(any(value in t.written(key) for t in self._txns) for key, value in read)
        for key, value in read:
            appended = list(chain.from_iterable(t.written(key) for t in self._txns))
            if any(value.count(each) > appended.count(each) for each in value):
                return False
            others = [other for k, other in read if k == key]
            agree = all(a[: len(b)] == b[: len(a)] for a, b in combinations(others, 2))
            if agree and not self._shows_commits(key, value):
                return False
        return True

    def _shows_commits(self, key: str, shown: tuple[Any, ...]) -> bool:
        versions = [values for _, values in self._versions.get(key, [])]
        places = [at for each in shown for at, values in enumerate(versions) if each in values]
        before = versions[: max(places, default=0)]
        return places == sorted(places) and all(each in shown for values in before for each in values)
