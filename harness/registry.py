"""Tables of the names that a user may type, and functions that load what they name.  Modules are imported when
needed."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.spec import CLIENT_NODES, LIMITS, Spec, WrongSpec, unknown_name

if TYPE_CHECKING:
    from harness.backends.backend import Backend, ClusterSpec
    from system_under_test.own.subject import Subject
    from workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """A backend.

    summary: one line for `list`
    target: module:class, imported when needed
    inventory: module:function that verifies an inventory; "" if the backend needs none
    virtual_time: True if runs need an event loop on virtual time
    not_kept: reason why nodes cannot outlive their run; "" if they can
    """

    summary: str
    target: str
    inventory: str = ""
    virtual_time: bool = False
    not_kept: str = ""


SUBJECTS: Mapping[str, str] = {
    "kraft": "system_under_test.kraft.subject:Kraft",
    "kraft-brokers": "system_under_test.kraft.subject:KraftBrokers",
    "kraft-apart": "system_under_test.kraft.subject:KraftApart",
    "kraft-snapshots": "system_under_test.kraft.subject:KraftWithSnapshots",
    "kraft-voters": "system_under_test.kraft.subject:KraftWithVoters",
    "kraft-whole": "system_under_test.kraft.subject:KraftWhole",
    "kafka": "system_under_test.kafka.system:Kafka",
    "kafka-brokers": "system_under_test.kafka.bundled:KafkaBrokers",
    "kafka-mixed": "system_under_test.kafka.bundled:KafkaMixed",
    "etcd": "system_under_test.etcd:Etcd",
    "canary": "system_under_test.canary:Canary",
}
"""Name -> module:class of a bundled system, imported when needed."""

WORKLOADS: Mapping[str, str] = {
    "register": "workloads.objects:Register",
    "repeated-register": "workloads.objects:RepeatedRegister",
    "cas-register": "workloads.objects:CasRegister",
    "shown-order": "workloads.objects:ShownOrder",
    "digests": "workloads.objects:Digests",
    "set": "workloads.objects:GrowSet",
    "large-set": "workloads.objects:LargeSet",
    "convergence": "workloads.objects:Convergence",
    "set-convergence": "workloads.objects:SetConvergence",
    "append-log": "workloads.objects:AppendLog",
    "queue": "workloads.objects:Queue",
    "at-least-once-queue": "workloads.objects:AtLeastOnceQueue",
    "counter": "workloads.objects:Counter",
    "unique-ids": "workloads.objects:UniqueIds",
    "kv": "workloads.objects:KeyValue",
    "lock": "workloads.objects:Lock",
    "fenced-lock": "workloads.objects:FencedLock",
    "leased-lock": "workloads.objects:LeasedLock",
    "list-append": "workloads.transactions:ListAppend",
    "rw-register": "workloads.transactions:RwRegister",
    "bank": "workloads.transactions:Bank",
    "long-fork": "workloads.transactions:LongFork",
    "kafka-queue": "workloads.kafka:KafkaQueue",
    "kafka-moves": "workloads.kafka:KafkaMoves",
    "kafka-consumers": "workloads.kafka:KafkaConsumers",
    "kafka-transactions": "workloads.kafka:KafkaTransactions",
    "kafka-offsets": "workloads.kafka:KafkaOffsets",
    "kafka-processing": "workloads.kafka:KafkaProcessing",
    "kafka-admin": "workloads.kafka:KafkaAdmin",
}
"""Name -> module:class of a workload, imported when needed.  If a run names no workload and its clients cannot run the
default workload, it gets the first one that they can run.  So stronger workloads come before weaker ones."""

BACKENDS: Mapping[str, BackendEntry] = {
    "docker": BackendEntry(
        "a container per node, one rule set on the bridge", "harness.backends.docker_backend:DockerBackend"
    ),
    "namespaces": BackendEntry(
        "a network namespace per node, a userspace switch between them; no Docker needed",
        "harness.backends.namespaces_backend:NamespacesBackend",
    ),
    "ssh": BackendEntry(
        "Linux hosts of your own, listed in an --inventory",
        "harness.backends.ssh_backend:SshBackend",
        inventory="harness.backends.ssh_inventory:refuse_inventory",
    ),
    "simulator": BackendEntry(
        "machines, links, disks and clocks on virtual time: a minute in seconds, and one seed decides everything",
        "harness.backends.simulator:SimulatorBackend",
        virtual_time=True,
        not_kept="nodes on virtual time exist only while their run goes on (`krucible step` replays a run)",
    ),
    "in-process": BackendEntry(
        "no nodes at all (the canary)",
        "harness.backends.in_process:InProcessBackend",
        not_kept="a system in the harness' own process has no nodes to enter",
    ),
}


_SETTING_MOST = 1e9


def load_subject(wanted: Spec | str) -> Subject:
    """Return a subject, with the parameters that the spec sets.

    wanted: spec, or name of a subject: a name in SUBJECTS, a user's file or folder, or an entry point of
        `krucible.systems`
    Raises WrongSpec for an unknown name, a file without a system, or an invalid value of a parameter.
    """
    if isinstance(wanted, str):
        return _subject_named(wanted)
    subject = _subject_named(wanted.subject)
    try:
        subject.set({name: text for name, text in wanted.settings.items() if name in subject.parameters})
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    return subject


def _subject_named(name: str) -> Subject:
    if name in SUBJECTS:
        from system_under_test.own.subject import Subject

        return Subject.bundled(load(SUBJECTS[name]))
    from system_under_test.own.read_own_system import NoSystem, find
    from system_under_test.own.subject import Subject

    try:
        if (found := find(name)) is not None:
            return Subject.read(*found)
    except NoSystem as problem:
        raise WrongSpec(str(problem)) from problem
    raise WrongSpec(unknown_name("subject", name, SUBJECTS))


def load_workload(spec: Spec) -> Workload:
    """Return the workload of a spec, with the parameters that the spec sets.  Raises WrongSpec for an unknown name or
    parameter."""
    workload = _workload(spec.workload, spec.subject)(spec.keys)
    workload.settings |= _settings(spec, type(workload))
    if workload.checkers in (("list-append",), ("rw-register",)):
        _demand_what_is_promised(workload, spec)
    return workload


def _demand_what_is_promised(workload: Workload, spec: Spec) -> None:
    """Choose another checker of transactions if the system does not promise strict serializability."""
    from checkers.transactions.anomalies import ENDINGS

    if promised := load_subject(spec).system.consistency:
        if promised not in ENDINGS:
            raise WrongSpec(unknown_name(f"consistency of {spec.subject}", promised, ENDINGS))
        workload.checkers = (f"{workload.checkers[0]}-{ENDINGS[promised]}",)  # type: ignore[misc]


def _settings(spec: Spec, kind: type[Workload]) -> dict[str, float]:
    """Return the parameters of the workload that the spec sets.  Raises WrongSpec for a parameter that neither the
    workload nor the system has, and for a value that is no number."""
    found: dict[str, float] = {}
    of_system: Mapping[str, object] = {}
    if not spec.settings.keys() <= kind.parameters.keys():
        of_system = load_subject(spec).parameters
    for name, text in spec.settings.items():
        if name not in kind.parameters and name not in of_system:
            known = (*kind.parameters, *of_system)
            raise WrongSpec(unknown_name(f"parameter of workload {kind.name} or of {spec.subject}", name, known))
        if name in kind.parameters:
            found[name] = _number(name, text)
    return found


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < _SETTING_MOST:
        raise WrongSpec(f"--set {name} takes a number of 0 or more, not {text!r:.60}")
    return value


def load_backend(name: str, cluster: ClusterSpec) -> Backend:
    """Return a new backend for a cluster.  Raises WrongSpec for an unknown name."""
    return load(_backend(name).target)(cluster)  # type: ignore[no-any-return]


def check_names(spec: Spec) -> None:
    """Raise WrongSpec if names in a spec are unknown or incompatible.  Imports only the subject, the workload and the
    kinds of fault."""
    _settings(spec, _workload(spec.workload, spec.subject))
    _check_nemesis(spec.nemesis)
    if spec.backend != "auto":
        _backend(spec.backend)
    subject = load_subject(spec)
    refuse_workload(spec, subject)
    if spec.bug is not None and spec.bug not in subject.bugs:
        raise WrongSpec(_not_a_bug_of(subject, spec.bug))
    if spec.bug is not None and spec.workload not in subject.bugs[spec.bug].workloads:
        shown = ", ".join(subject.bugs[spec.bug].workloads)
        raise WrongSpec(f"workload {spec.workload!r} cannot show the planted bug {spec.bug!r}; these can: {shown}")
    if not subject.declares.nodes and spec.backend not in ("auto", "in-process"):
        raise WrongSpec(f"subject {subject.name} has no nodes, so it cannot run on backend {spec.backend!r}")
    if spec.backend in BACKENDS and BACKENDS[spec.backend].virtual_time and not subject.simulated:
        raise WrongSpec(
            f"subject {subject.name} cannot run on backend {spec.backend!r}: only an asyncio program with injected "
            "clock, disk and network can be simulated (docs/simulator.md)"
        )
    if subject.declares.nodes and spec.backend == "in-process":
        raise WrongSpec(f"subject {subject.name} needs nodes, and backend 'in-process' has none")


def _not_a_bug_of(subject: Subject, bug: str) -> str:
    """Return the message about a planted bug that the subject does not have, with the subjects that have it."""
    if others := [name for name in SUBJECTS if bug in load_subject(name).bugs]:
        return f"{bug!r} is no bug of {subject.name}, but of {', '.join(others)}: choose --subject {others[0]}"
    return unknown_name(f"bug of {subject.name}", bug, subject.bugs)


def usual_options(subject: str) -> Mapping[str, float]:
    """Return the default options of runs of this subject.  Raises WrongSpec as `load_subject` does, and for a name that
    is no numeric option.

    For the default subject, return {}: its defaults are in `Spec`, so that a wrong option is refused before a subject
    is imported.
    """
    usual = {} if subject == Spec().subject else load_subject(subject).usual
    for name in usual:
        if name not in LIMITS:
            raise WrongSpec(unknown_name(f"option in `usual` of {subject}", name, LIMITS))
    return usual


def with_limits(spec: Spec, given: Collection[str]) -> Spec:
    """Return the spec with its time limits stretched by the same factor as its faults.

    given: names of the options that the user set, which are not stretched"""
    holds = spec.lengthened(load_subject(spec).declares.failover_s)
    limits = ("time_limit_s", "recovery_limit_s")
    return replace(spec, **{name: holds * getattr(spec, name) for name in limits if name not in given})


def names_for_bug(subject: str, bug: str | None) -> dict[str, str]:
    """Return the workload and the nemesis for a run that names none: the defaults, or the first that can show the bug.

    If a system's file defines workloads, its first workload replaces the default.  If the system's clients cannot run
    the default workload, the first one that they can run replaces it.  For an unknown bug, return the defaults;
    `check_names` refuses it later.  Raises WrongSpec as `load_subject` does.
    """
    usual = {"workload": Spec().workload, "nemesis": Spec().nemesis}
    if subject not in SUBJECTS and (own := own_workloads(load_subject(subject))):
        usual["workload"] = next(iter(own))
    elif subject != Spec().subject:
        offered = offered_workloads(load_subject(subject))
        usual["workload"] = usual["workload"] if usual["workload"] in offered or not offered else offered[0]
    if bug is None or (planted := load_subject(subject).bugs.get(bug)) is None:
        return usual
    shown = {"workload": planted.workloads, "nemesis": planted.shown_by}
    return {what: name if name in (shown[what] or (name,)) else shown[what][0] for what, name in usual.items()}


def check_inventory(spec: Spec) -> None:
    """Raise WrongSpec if the backend needs an inventory and the spec has no valid one, or if the backend needs none and
    the spec has one."""
    refuse = BACKENDS[spec.backend].inventory if spec.backend in BACKENDS else ""
    if not refuse:
        if spec.inventory is not None:
            fit = ", ".join(name for name, entry in BACKENDS.items() if entry.inventory)
            raise WrongSpec(f"--inventory lists hosts of your own, which only this backend uses: --backend {fit}")
        return
    if spec.inventory is None:
        raise WrongSpec(f"--backend {spec.backend} needs hosts: name the file that lists them with --inventory")
    try:
        load(refuse)(Path(spec.inventory), spec.servers, CLIENT_NODES)
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem


def refuse_workload(spec: Spec, subject: Subject) -> None:
    """Raise WrongSpec if the subject's clients cannot run the workload."""
    kind = own_workloads(subject).get(spec.workload) or _workload(spec.workload)
    if why := _why_not(kind, subject):
        runs = ", ".join(offered_workloads(subject)) or "none"
        raise WrongSpec(f"subject {subject.name} cannot run workload {spec.workload!r}: {why}; it runs: {runs}")


def offered_workloads(subject: Subject) -> tuple[str, ...]:
    """Return the names of the workloads that the subject's clients can run.  Workloads in its own file come first."""
    own = own_workloads(subject)
    known = {**own, **{name: _workload(name) for name in WORKLOADS if name not in own}}
    return tuple(name for name, kind in known.items() if not _why_not(kind, subject))


def _why_not(kind: type[Workload], subject: Subject) -> str:
    """Return why the clients of a subject cannot run a workload; "" if they can."""
    if lacking := sorted({*kind.functions.values(), *kind.background} - subject.functions):
        return f"its client has no {' and no '.join(lacking)}"
    if kind.each_server and not subject.keeps_to_one_server:
        return "its clients choose their servers themselves"
    return ""


def own_workloads(subject: Subject) -> dict[str, type[Workload]]:
    """Return the workloads in the file of a user's system.  Raises WrongSpec."""
    from workloads.read_own_workload import NoWorkload, workloads_in

    if not subject.files:
        return {}
    try:
        return workloads_in(subject.module, subject.main.name)
    except NoWorkload as problem:
        raise WrongSpec(str(problem)) from problem


def _workload(name: str, subject: str = "") -> type[Workload]:
    """Return the class of a workload.  Raises WrongSpec for an unknown name.

    subject: name of a system whose file may define the workload"""
    if name.endswith(".py"):
        from workloads.read_own_workload import NoWorkload, read_workload

        try:
            return read_workload(Path(name))
        except NoWorkload as problem:
            raise WrongSpec(str(problem)) from problem
    own = own_workloads(load_subject(subject)) if subject and subject not in SUBJECTS else {}
    if name in own:
        return own[name]
    if name not in WORKLOADS:
        raise WrongSpec(unknown_name("workload", name, (*own, *WORKLOADS)))
    return load(WORKLOADS[name])  # type: ignore[no-any-return]


def _check_nemesis(name: str) -> None:
    from nemesis.kinds import EVERY, NONE, is_kind, kinds_of, summaries

    for part in name.split(","):
        if part.strip() not in (NONE, EVERY) and not is_kind(part.strip()):
            raise WrongSpec(unknown_name("nemesis", part.strip(), summaries()))
    if name == EVERY:
        return
    try:
        kinds_of(name)
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem


def load(target: str) -> Any:
    """Import and return an object.

    target: "module:attribute" """
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _backend(name: str) -> BackendEntry:
    if name not in BACKENDS:
        raise WrongSpec(unknown_name("backend", name, BACKENDS))
    return BACKENDS[name]
