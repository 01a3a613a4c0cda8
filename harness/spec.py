"""The spec of one test: a value that determines everything that the test does.

The seed determines every random choice.  Each part of a test has its own random generator, seeded with the name of the
part.  So a change in one part, such as an additional operation, does not change the choices of other parts.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from checkers.run_quality.waivers import WAIVABLE
from harness.started import by_make, program
from system_under_test.client import Placement
from system_under_test.subject import FAILOVER_S

CLIENT_NODES = ("c1", "c2")
_MAKEFILE = Path(__file__).resolve().parents[1] / "Makefile"


class WrongSpec(ValueError):
    """The test cannot be run.  The message names the wrong option and its possible values."""


def unknown_name(what: str, name: str, known: Collection[str]) -> str:
    """Return the message about an unknown name, with a similar name and all valid names."""
    near = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]!r}?  Known" if near else "known"
    return f"unknown {what} {name!r}; {meant}: {', '.join(known) or 'none'}"


SLOW = "kafka"
"""Prefix of the bundled subjects that have their own defaults (`System.usual`, `failover_s`)."""
KINDS_IN_A_NAME = 4
"""Maximum number of kinds of fault in the name of a test.  A test with more is named after their number, because the
name is also the name of a folder."""


@dataclass(frozen=True, slots=True)
class Option:
    """A field of `Spec` as an option of commands and as a variable of make.

    help: text for `--help`
    make: name of the variable of make, or ""
    limits: minimum and maximum of a number
    names: kind of names that the option accepts ("subjects", "nemeses", …), for completion in shells
    metavar: name of the value in help texts
    unset: default in words, if the default is no constant
    existing: True if the value must be an existing file
    """

    help: str
    make: str = ""
    limits: tuple[float, float] | None = None
    names: str = ""
    metavar: str | None = None
    unset: str = ""
    existing: bool = False


def _of(default: Any, help_words: str, **about: Any) -> Any:
    """Return a field of `Spec` with its default and its `Option`."""
    return field(default=default, metadata={"option": Option(help_words, **about)})


@dataclass(frozen=True, slots=True)
class Spec:
    """The spec of one test.  Each field with an `Option` is an option of `run`, and perhaps a variable of make."""

    nemesis: str = _of(
        "partition", "Kinds of fault; see `list`.  Several: partition,kill; or all.",
        names="nemeses", unset="partition, or one that shows the planted bug",
    )  # fmt: skip
    seed: int = _of(
        0, "Seed of all random choices.", make="SEED", limits=(-(2**63), 2**63 - 1), unset="random, printed",
    )  # fmt: skip
    nodes: int = _of(5, "Servers, without client nodes.", make="NODES", limits=(1, 9))
    time_limit_s: float = _of(
        60.0, "Seconds of the main phase.", make="TIME_LIMIT", limits=(1, 7 * 86_400), unset="60, times --holds",
    )  # fmt: skip
    rate_hz: float = _of(
        200.0, "Operations per second of all clients; 0: each client sends at once after an answer.", make="RATE",
        limits=(0, 1_000_000),
    )  # fmt: skip
    concurrency: int = _of(
        10, "Concurrent processes on all client nodes.", make="CONCURRENCY", limits=(4 * len(CLIENT_NODES), 1_000),
    )  # fmt: skip
    op_timeout_s: float = _of(
        2.0,
        "Seconds that a client waits for an answer; 0.7 shows more stale reads than 2, the timeout of fetches.",
        make="OP_TIMEOUT", limits=(0.01, 3_600),
    )  # fmt: skip
    recovery_limit_s: float = _of(
        60.0, "Seconds within which the system must recover after all faults are healed.",
        make="RECOVERY_LIMIT", limits=(1, 86_400), unset="60, times --holds",
    )  # fmt: skip
    holds: float = _of(
        0.0,
        "Factor by which faults, the pauses between faults, and time limits are stretched, for a system whose "
        f"fail-over takes longer than {FAILOVER_S:g} s; 0: by `failover_s` of the system.",
        make="HOLDS", limits=(0, 100), unset="by `failover_s` of the system",
    )  # fmt: skip
    waive: str = _of(
        "",
        "Waive demands on the run, such as elections if a system needs none; the first line of the verdict mentions "
        "this.  `list` shows the names.",
        make="WAIVE", metavar="NAME,…",
    )  # fmt: skip
    set: str = _of(
        "", "Parameters of the workload, such as held_s=2 of lock; `list` shows them.", make="SET",
        metavar="NAME=VALUE,…",
    )  # fmt: skip
    keys: int = _of(
        10,  # a higher limit cannot be created and read again within a minute
        "Objects to work on, such as registers.", make="KEYS", limits=(1, 10_000),
    )  # fmt: skip
    workload: str = _of(
        "register", "Workload: the operations that clients invoke.", make="WORKLOAD", names="workloads",
        unset="register, or one that shows the planted bug",
    )  # fmt: skip
    subject: str = _of("kraft", "The system under test.", make="SUBJECT", names="subjects")
    backend: str = _of("auto", "Kind of nodes; auto: docker if it answers.", make="BACKEND", names="backends")
    bug: str | None = _of(None, "Run the subject with this planted bug; see `list`.", make="BUG", names="bugs")
    schedule: str | None = _of(
        None, "Play this schedule of faults (JSON) instead of a generated one.", make="SCHEDULE", existing=True,
    )  # fmt: skip
    stop_on_violation: bool = _of(
        False, "End the main phase early when an online check finds a violation.", make="STOP_ON_VIOLATION",
    )  # fmt: skip
    inventory: str | None = _of(
        None, "The hosts of --backend ssh, a TOML file; see docs/ssh.md.", make="INVENTORY", metavar="FILE",
    )  # fmt: skip
    as_executed: bool = _of(
        False,
        "Inject the faults of a run's schedule.json on nodes with the same names.  Otherwise faults of the leader hit "
        "the present leader.",
    )  # fmt: skip
    online: bool = _of(True, "Judge also during the run.")
    over_budget: bool = _of(
        False, "Let faults also destroy data that a majority has fsynced; the loss of this data is no violation.",
    )  # fmt: skip
    finding: str | None = None
    """Name of the known finding or of the clean run; None for other runs."""
    clean: bool = False
    """True if the run is the counterpart of `finding`, or a clean run."""

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not value >= least:  # NaN is neither
                raise WrongSpec(f"{option_of(name)} must be at least {_plain(least)}, not {_plain(value)}{_why(name)}")
            if value > most:
                raise WrongSpec(f"{option_of(name)} must be at most {_plain(most)}, not {_plain(value)}")
        _ = self.settings
        for name in self.waived:
            if name not in WAIVABLE:
                raise WrongSpec(unknown_name("demand to waive", name, WAIVABLE))
        if self.stop_on_violation and not self.online:
            raise WrongSpec("--stop-on-violation needs online checks: it cannot go with --no-online")

    @property
    def test(self) -> str:
        """Return the name of the test, as in `make test-partition` and in results/."""
        kinds = self.nemesis.replace(":", "-").split(",")
        return f"test-{'-'.join(kinds)}" if len(kinds) <= KINDS_IN_A_NAME else f"test-{len(kinds)}-kinds"

    @property
    def settings(self) -> dict[str, str]:
        """Return name -> value of each parameter in `set`.  Raises WrongSpec for text other than NAME=VALUE."""
        found = {}
        for each in filter(None, (part.strip() for part in self.set.split(","))):
            name, _, text = each.partition("=")
            if not (name.strip() and text.strip()):
                raise WrongSpec(f"--set takes NAME=VALUE, not {each!r:.60}")
            found[name.strip()] = text.strip()
        return found

    @property
    def waived(self) -> tuple[str, ...]:
        """Return the names in `waive`, each once."""
        return tuple(dict.fromkeys(filter(None, (name.strip() for name in self.waive.split(",")))))

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))

    def rng(self, stream: str) -> Random:
        """Return the random generator of one named part of this test."""
        return Random(f"{self.seed}/{stream}")

    def lengthened(self, failover_s: float) -> float:
        """Return the factor by which waits for a fail-over are stretched; at least 1 unless the user set it."""
        return self.holds or max(1.0, failover_s / FAILOVER_S)

    def placements(self) -> tuple[Placement, ...]:
        """Return the threads, which are assigned to the client nodes in turn.

        On each node the first two threads only read, and the others read and write.  Half of the threads follow the
        leader, the others stay with one server; the two kinds alternate on each node.  Servers are assigned in turn to
        the threads of each kind.
        """
        placements: list[Placement] = []
        for thread in range(self.concurrency):
            node, rank = thread % len(CLIENT_NODES), thread // len(CLIENT_NODES)
            follows = (rank + node) % 2 == 0
            before = sum(placement.follows == follows for placement in placements)
            placements.append(
                Placement(
                    thread=thread,
                    client_node=CLIENT_NODES[node],
                    follows=follows,
                    reads_only=rank < 2,
                    member=self.servers[before % self.nodes],
                )
            )
        return tuple(placements)

    def rerun(self, beside: Sequence[str] = ()) -> str:
        """Return the shell command that repeats this test.  If make started this process, it is a command of make.

        beside: options outside the spec, which no goal of make accepts
        """
        if by_make() and _MAKEFILE.exists() and not beside:
            if self.finding is not None and not self.clean:
                backend = [] if self.backend == _DEFAULTS["backend"] else [f"BACKEND={self.backend}"]
                return shlex.join(["make", f"find-{self.finding}", f"SEED={self.seed}", *backend])
            has_goal = self.finding is None and self.nemesis != "none" and ":" not in self.nemesis
            if has_goal and not self._changed().keys() - _VARIABLES.keys():
                variables = [f"{_VARIABLES[name]}={_plain(value)}" for name, value in self._changed().items()]
                return shlex.join(["make", f"test-{self.nemesis}", f"SEED={self.seed}", *variables])
        return f"{program()} {shlex.join([*self.words(), *beside])}"

    def words(self) -> list[str]:
        """Return the arguments of `krucible` that repeat this test."""
        if self.finding is not None:
            words = ["find", self.finding, *(["--clean"] if self.clean else []), "--seed", str(self.seed)]
            return [*words, *([] if self.backend == _DEFAULTS["backend"] else ["--backend", self.backend])]
        words = ["run", "--nemesis", self.nemesis, "--seed", str(self.seed)]
        for name, value in self._changed().items():
            if isinstance(value, bool):
                words.append(option_of(name) if value else option_of(name).replace("--", "--no-", 1))
            else:
                words += [option_of(name), _plain(value)]
        return words

    def _changed(self) -> dict[str, Any]:
        """Return the options that the rerun command must contain, other than nemesis and seed: those that differ from
        their defaults, and those whose defaults depend on the bug or the subject.
        """
        named, kept = {"nemesis", "seed", "finding", "clean"}, {"workload"} if self.bug else set()
        if self.holds or "." in self.subject or "/" in self.subject or self.subject.startswith(SLOW):
            kept = {*kept, "time_limit_s", "recovery_limit_s"}
        if self.subject.startswith(SLOW):
            kept = {*kept, "nodes", "rate_hz", "keys"}
        values = {name: getattr(self, name) for name in _DEFAULTS if name not in named}
        return {name: value for name, value in values.items() if value != _DEFAULTS[name] or name in kept}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Spec:
        """Return the spec of a stored run.  Ignore unknown names, which another version may have written.  Raises
        WrongSpec if a value is out of range."""
        known = {f.name for f in fields(Spec)}
        given = {k: v for k, v in data.items() if k in known}
        if not isinstance(given.get("finding", ""), str | None):
            raise WrongSpec(f"the finding of this run must be a name, not {given['finding']!r:.40}")
        for name, value in given.items():
            kind = type(_DEFAULTS[name])
            if kind in (bool, int, float, str) and not isinstance(value, (int, float) if kind is float else kind):
                raise WrongSpec(f"{option_of(name)} must be {kind.__name__}, not {value!r:.40}")
        return Spec(**given)


OPTIONS: Mapping[str, Option] = {f.name: f.metadata["option"] for f in fields(Spec) if f.metadata}
"""Name of a field -> its option."""
LIMITS: Mapping[str, tuple[float, float]] = {name: o.limits for name, o in OPTIONS.items() if o.limits is not None}
"""Name of a numeric field -> (minimum, maximum)."""
_VARIABLES = {name: option.make for name, option in OPTIONS.items() if option.make and name != "seed"}
_DEFAULTS = {f.name: f.default for f in fields(Spec)}


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _why(name: str) -> str:
    if name != "concurrency":
        return ""
    return ": every client node needs two processes that only read and two that write; one of each follows the leader"


BESIDE = ("--results", "--store", "--spark-master", "--metrics")
"""Options of a run that are not part of its spec, because they do not affect the test."""


def beside_of(command: str) -> list[str]:
    """Return the options in BESIDE of a recorded command, each with its value."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return [word for pair in pairwise(words) if pair[0] in BESIDE for word in pair]


def option_of(name: str) -> str:
    """Return the command-line option of a field of `Spec`, such as --time-limit."""
    return "--" + name.removesuffix("_hz").removesuffix("_s").replace("_", "-")
