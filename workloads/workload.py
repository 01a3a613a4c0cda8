"""Definition of a workload: what clients invoke in set-up, under faults and at the end, and which checkers judge it.

A workload is one class of this folder and one entry in `harness/registry.py`.  It derives from `Workload` and states:

* `functions`: the functions it invokes.  The key is the `f` that stands in the history, as the checker expects it; the
  value names the function of a client that serves it (`system_under_test/functions.py` lists them).  A subject runs
  every workload whose client functions it has.
* `checkers`: the names of the checkers that judge its histories.  Checkers over logs and traces come with the subject.
  A workload of a user's own may also state a model, a function or a checker itself (`checkers/models/checker.py`).
* `reads` and `writes`: which `f` report a state, and which may change one.
* `generator`: what one thread invokes during the main phase, a value of `workloads/generators.py`.
* `final`: what is invoked after recovery, each request until it is ok.
* `real_test`: in one sentence, what a run must contain to show anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from checkers.base.history import CREATE
from system_under_test.client import Placement as Placement
from system_under_test.client import Request as Request
from system_under_test.functions import Function
from workloads.generators import Call, Generator, Mix, Pace, Pick, Steady, Turn, reads_of, reserve, uniform

if TYPE_CHECKING:  # nodes import this module without checkers, for a file with both a workload and a client
    from checkers.base.checker import Checker
    from checkers.models.model import Model


class Workload:
    """key_count: how many objects are used at a time.  Raises ValueError where there is none."""

    name: ClassVar[str]
    summary: ClassVar[str]
    checkers: ClassVar[tuple[str | Model | Checker | Callable[..., Any], ...]]
    functions: ClassVar[Mapping[str, str]]
    reads: ClassVar[frozenset[str]]
    writes: ClassVar[frozenset[str]]
    real_test: ClassVar[str]
    own_functions: ClassVar[Mapping[str, Function]] = {}
    """Functions that only this workload knows: name of the client's method -> what it is given and answers."""
    background: ClassVar[Mapping[str, int]] = {}
    """Load beside the test that nobody judges: function of `own_functions`, given nothing or a random value -> number
    of clients that call it again and again during the main phase."""
    each_server: ClassVar[bool] = False
    """True if each client keeps to one server, whoever leads, so that every server is written and read."""
    final_until_same: ClassVar[bool] = False
    """True if `final` is invoked at every server again and again, until all answer the same or the time is over."""
    unique_values: ClassVar[bool] = True
    """True if no value is written twice to a key, so that values distinguish the entries of a log."""
    pace: ClassVar[Pace] = Steady()
    invoked_share: ClassVar[float] = 1.0
    """Share of the scheduled rate that is invoked where nothing is broken: a generator that waits invokes less."""
    ok_share: ClassVar[float] = 1.0
    """Share of its operations that can be ok where nothing is broken; locks are mostly held by another."""
    final_repeats: ClassVar[bool] = True
    """True if `final` may be invoked at every server in turn: a read may, a drain empties its queue."""
    final_needs_recovery: ClassVar[bool] = False
    """True if `final` shows what the system keeps only once it has recovered.  Before, its answers may be old: what
    only they show makes the run unknown."""
    prefix: ClassVar[str] = "k"
    parameters: ClassVar[Mapping[str, float]] = {}
    """Numbers that a user may set with `--set NAME=VALUE`, and their usual values; `settings` holds those of a run."""

    def __init__(self, key_count: int) -> None:
        if key_count < 1:
            raise ValueError(f"workload {self.name} needs at least one key, not {key_count}")
        self.key_count = key_count
        self.settings: dict[str, float] = dict(self.parameters)
        self.names = tuple(f"{self.prefix}{i}" for i in range(self.objects(key_count)))

    @staticmethod
    def objects(key_count: int) -> int:
        """Return how many objects are made for `key_count` keys: more where keys are retired and new ones taken."""
        return key_count

    def keys(self) -> Sequence[str]:
        """Return the key of every object, as it stands in the history."""
        return self.names

    def set_up(self) -> Sequence[Request]:
        """Invoked before the main phase, each until ok."""
        return [Request(CREATE, key) for key in self.names]

    def wrong_request(self, request: object) -> str:
        """Return one sentence if no client can be given this, which a generator or `final` returned; else ""."""
        if not isinstance(request, Request):
            return f"workload {self.name} invokes {request!r:.60}, which is no Request"
        if request.f not in self.functions and request.f != CREATE:
            return f"workload {self.name} invokes {request.f!r:.60}; its functions: {', '.join(sorted(self.functions))}"
        for field in ("key", "payload"):
            if not isinstance(held := getattr(request, field), str | None):
                return (
                    f"workload {self.name} invokes {request.f} with {held!r:.60} as its {field}, which must be a text"
                )
        for field in ("value", "value2"):
            if (held := getattr(request, field)) is not None and not hasattr(held, "__index__"):
                words = "which must be a whole number; give anything else as JSON in payload"
                return f"workload {self.name} invokes {request.f} with {held!r:.60} as its {field}, {words}"
        return ""

    def generator(self, placement: Placement) -> Generator:
        """Return what this thread invokes; it goes on when its process is retired and another takes its place."""
        raise NotImplementedError

    def final(self) -> Sequence[Request]:
        """Invoked after recovery, each until ok: a last read of every object."""
        raise NotImplementedError


Calls = Sequence[tuple[float, str, Callable[[Turn], tuple[Any, ...]]]]
"""Share, function, and what a request carries behind its function and its key."""


def nothing(turn: Turn) -> tuple[()]:
    """Return no values: a read."""
    return ()


def fresh(turn: Turn) -> tuple[int]:
    """Return a value that no other request carries."""
    return (turn.fresh(),)


class MixedWorkload(Workload):
    """A workload of calls that have nothing to do with each other.

    A thread that only reads invokes the last function of `mix`; the others draw from all of them.
    """

    mix: ClassVar[Calls]
    final_function: ClassVar[str] = ""
    """Invoked of every object after recovery; "": the last function of `mix`."""

    def pick(self) -> Pick:
        """Return the choice of a key."""
        return uniform(self.names)

    def call(self, f: str, values: Callable[[Turn], tuple[Any, ...]]) -> Generator:
        """Return calls of one function, of keys that `pick` chooses."""
        key = self.pick()
        return Call(lambda turn: Request(f, key(turn), *values(turn)))

    def generator(self, placement: Placement) -> Generator:
        calls = [(share, self.call(f, values)) for share, f, values in self.mix]
        return reserve(placement, readers=calls[-1][1], others=Mix(tuple(calls)))

    def final(self) -> Sequence[Request]:
        return reads_of(self.final_function or self.mix[-1][1], self.names)
