"""Every name a user may type, and what it stands for.  Nothing heavy is imported until it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.spec import Spec, WrongSpec
from nemesis.deck import NEMESES

if TYPE_CHECKING:
    from harness.backends.backend import Backend, ClusterSpec
    from system_under_test.subject import Subject
    from workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Entry:
    """summary: one line for `list`.  target: module:attribute, imported when it is needed."""

    summary: str
    target: str

    def load(self) -> object:
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


SUBJECTS: Mapping[str, Entry] = {
    "kraft": Entry("the bundled KRaft quorum", "system_under_test.kraft.subject:Kraft"),
    "etcd": Entry("etcd 3.4 as Debian packages it, through its JSON gateway", "system_under_test.etcd.subject:Etcd"),
    "canary": Entry(
        "an in-process fake register: the harness' test of itself", "system_under_test.canary.subject:Canary"
    ),
}

WORKLOADS: Mapping[str, Entry] = {
    "register": Entry("reads and writes of single registers, values unique", "workloads.register:Register"),
}

BACKENDS: Mapping[str, Entry] = {
    "docker": Entry("a container per node, one rule set on the bridge", "harness.backends.docker:DockerBackend"),
    "namespaces": Entry(
        "a network namespace per node, a userspace switch between them; no Docker needed",
        "harness.backends.namespaces:NamespacesBackend",
    ),
    "in-process": Entry("no nodes at all (the canary)", "harness.backends.in_process:InProcessBackend"),
}


def load_subject(name: str) -> Subject:
    """Raises WrongSpec for an unknown name."""
    return _pick("subject", SUBJECTS, name).load()()  # type: ignore[operator, no-any-return]


def load_workload(spec: Spec) -> Workload:
    """Raises WrongSpec for an unknown name."""
    return _pick("workload", WORKLOADS, spec.workload).load()(spec.keys)  # type: ignore[operator, no-any-return]


def load_backend(name: str, cluster: ClusterSpec) -> Backend:
    """Raises WrongSpec for an unknown name."""
    return _pick("backend", BACKENDS, name).load()(cluster)  # type: ignore[operator, no-any-return]


def check_names(spec: Spec) -> None:
    """Refuse a spec whose names do not fit together.  Raises WrongSpec; imports only the subject."""
    _pick("workload", WORKLOADS, spec.workload)
    if spec.nemesis not in NEMESES:
        raise WrongSpec(f"unknown nemesis {spec.nemesis!r}; known: {', '.join(NEMESES)}")
    if spec.backend != "auto":
        _pick("backend", BACKENDS, spec.backend)
    subject = load_subject(spec.subject)
    if spec.workload not in subject.workloads:
        raise WrongSpec(
            f"subject {subject.name} cannot run workload {spec.workload!r}; it runs: {', '.join(subject.workloads)}"
        )
    if spec.bug is not None and spec.bug not in subject.bugs:
        known = ", ".join(subject.bugs) or "none"
        raise WrongSpec(f"subject {subject.name} has no planted bug {spec.bug!r}; it knows: {known}")
    if not subject.declares.nodes and spec.backend not in ("auto", "in-process"):
        raise WrongSpec(f"subject {subject.name} has no nodes, so it cannot run on backend {spec.backend!r}")
    if subject.declares.nodes and spec.backend == "in-process":
        raise WrongSpec(f"subject {subject.name} needs nodes, and backend 'in-process' has none")


def _pick(what: str, table: Mapping[str, Entry], name: str) -> Entry:
    if name not in table:
        raise WrongSpec(f"unknown {what} {name!r}; known: {', '.join(table)}")
    return table[name]
