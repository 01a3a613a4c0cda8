"""Definition of a workload: the requests of clients in set-up, under faults and at the end, and the checkers that judge
them.

A workload is one class of this folder and one entry in `harness/registry.py`.  The class derives from `Workload` and
defines:

* `functions`: the functions that it invokes.  The key is the `f` in the history, as the checker expects it; the value
  is the name of the client's function that executes it (`system_under_test/functions.py` lists these functions).  A
  subject can run every workload whose client functions it has.
* `checkers`: the names of the checkers that judge its histories.  Checkers over logs and traces come with the subject.
  A user's own workload may also contain a model, a function or a checker instead of a name
(`checkers/models/checker.py`).
* `reads` and `writes`: the `f` that return a state, and the `f` that may change a state.
* `generator`: returns the generator of one thread's requests in the main phase (`workloads/generators.py`).
* `final`: returns the requests after recovery; each is repeated until it is ok.
* `real_test`: one sentence that describes what a run must contain to be a real test.
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
    """The base of all workloads.  Raises ValueError if `key_count` is below 1.

    key_count: number of objects in use at a time
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    checkers: ClassVar[tuple[str | Model | Checker | Callable[..., Any], ...]]
    functions: ClassVar[Mapping[str, str]]
    reads: ClassVar[frozenset[str]]
    writes: ClassVar[frozenset[str]]
    real_test: ClassVar[str]
    own_functions: ClassVar[Mapping[str, Function]] = {}
    """Functions that exist only in this workload: name of the client's method -> its arguments and its answer."""
    background: ClassVar[Mapping[str, int]] = {}
    """Load beside the test that no checker judges: function of `own_functions` -> number of clients that call it
    repeatedly during the main phase.  The function accepts nothing or a random value.
    """
    each_server: ClassVar[bool] = False
    """True if each client uses only one server, whichever server leads, so that every server is written and read."""
    final_until_same: ClassVar[bool] = False
    """True if `final` is invoked at every server repeatedly, until all answers are equal or the time is over."""
    unique_values: ClassVar[bool] = True
    """True if no value is written twice to a key, so that values distinguish the entries of a log."""
    pace: ClassVar[Pace] = Steady()
    invoked_share: ClassVar[float] = 1.0
    """Fraction of the scheduled rate that is invoked without faults: a generator that waits invokes fewer requests."""
    ok_share: ClassVar[float] = 1.0
    """Fraction of the operations that can be ok without faults.  For example, most acquires fail because another thread
    holds the lock.
    """
    final_repeats: ClassVar[bool] = True
    """True if `final` may be invoked at every server in turn.  A read may, but a drain may not, because it empties its
    queue.
    """
    final_needs_recovery: ClassVar[bool] = False
    """True if `final` returns the system's actual state only after recovery.  Without recovery its answers may be
    stale, so a violation that only these answers show makes the run unknown.
    """
    prefix: ClassVar[str] = "k"
    parameters: ClassVar[Mapping[str, float]] = {}
    """Numbers that a user may set with `--set NAME=VALUE`, and their default values; `settings` contains the values of
    a run.
    """

    def __init__(self, key_count: int) -> None:
        if key_count < 1:
            raise ValueError(f"workload {self.name} needs at least one key, not {key_count}")
        self.key_count = key_count
        self.settings: dict[str, float] = dict(self.parameters)
        self.names = tuple(f"{self.prefix}{i}" for i in range(self.objects(key_count)))

    @staticmethod
    def objects(key_count: int) -> int:
        """Return the number of objects to create for `key_count` keys: more than `key_count` if retired keys are
        replaced by new ones.
        """
        return key_count

    def keys(self) -> Sequence[str]:
        """Return the key of every object, as recorded in the history."""
        return self.names

    def set_up(self) -> Sequence[Request]:
        """Return the requests before the main phase; each is repeated until it is ok."""
        return [Request(CREATE, key) for key in self.names]

    def wrong_request(self, request: object) -> str:
        """Return in one sentence why a client cannot execute this result of a generator or of `final`; "" if it can."""
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
        """Return the generator of this thread.  It continues when the thread's process is retired and another process
        replaces it.
        """
        raise NotImplementedError

    def final(self) -> Sequence[Request]:
        """Return the requests after recovery, such as a last read of every object; each is repeated until it is ok."""
        raise NotImplementedError


Calls = Sequence[tuple[float, str, Callable[[Turn], tuple[Any, ...]]]]
"""(Share, function, the values of a request after its function and its key)."""


def nothing(turn: Turn) -> tuple[()]:
    """Return no values, as for a read."""
    return ()


def fresh(turn: Turn) -> tuple[int]:
    """Return a value that no other request contains."""
    return (turn.fresh(),)


class MixedWorkload(Workload):
    """A workload of independent calls.

    A thread that only reads invokes the last function of `mix`; the other threads draw from all functions of `mix`.
    """

    mix: ClassVar[Calls]
    final_function: ClassVar[str] = ""
    """Function to invoke on every object after recovery; "" for the last function of `mix`."""

    def pick(self) -> Pick:
        """Return the function that chooses the key of a request."""
        return uniform(self.names)

    def call(self, f: str, values: Callable[[Turn], tuple[Any, ...]]) -> Generator:
        """Return a generator of calls of one function with keys that `pick` chooses."""
        key = self.pick()
        return Call(lambda turn: Request(f, key(turn), *values(turn)))

    def generator(self, placement: Placement) -> Generator:
        calls = [(share, self.call(f, values)) for share, f, values in self.mix]
        return reserve(placement, readers=calls[-1][1], others=Mix(tuple(calls)))

    def final(self) -> Sequence[Request]:
        return reads_of(self.final_function or self.mix[-1][1], self.names)
