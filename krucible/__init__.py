"""The public interface: all names that a user of Krucible imports.

- `check` judges a history, and `run` runs a test (both on this machine).
- `System`, `Client`, `Needs`, `Crate`, `Artefact`, `Jars`, `NodeStatus`: to write a system of your own
  (docs/your-own-system.md).
- `SqlClient`, `SqlSystem`: base classes for systems that are SQL databases.
- `Workload`, `Request`, `Function`, `Checker`, `Model`, `Operation`, `REFUSED`, `Fault`: to write workloads, checkers,
  models and faults of your own (docs/your-own-workload.md, docs/your-own-checker.md, docs/models.md,
  docs/your-own-fault.md).
- `World`, `simulate`, `Impairment`: to run servers of your own on virtual time (docs/simulate-your-own-server.md).
- `Spec`, `JudgedRun`, `Verdict`, `Validity`, `Witness`: the input and the results of a run.

Clients on nodes import this package too.  So each name is loaded when it is first used, and importing the package costs
nothing.

>>> import krucible
>>> krucible.Spec(nemesis="kill", seed=7).rerun()
'make test-kill SEED=7'
>>> krucible.Needle
Traceback (most recent call last):
AttributeError: module 'krucible' has no attribute 'Needle'; did you mean 'Needs'?
"""

_NAMES = {
    "check": "harness.judge.check_files",
    "run": "harness.run.session",
    "JudgedRun": "harness.run.session",
    "Spec": "harness.spec",
    "System": "system_under_test.system",
    "OwnNode": "system_under_test.system",
    "Client": "system_under_test.client",
    "SqlClient": "system_under_test.sql",
    "SqlSystem": "system_under_test.sql",
    "Address": "system_under_test.client",
    "Placement": "system_under_test.client",
    "Artefact": "system_under_test.subject",
    "Crate": "system_under_test.subject",
    "Jars": "system_under_test.subject",
    "Needs": "system_under_test.subject",
    "NodeStatus": "system_under_test.subject",
    "Workload": "workloads.workload",
    "Request": "system_under_test.client",
    "Function": "system_under_test.functions",
    "Checker": "checkers.base.checker",
    "Model": "checkers.models.model",
    "Operation": "checkers.models.model",
    "REFUSED": "checkers.models.model",
    "Fault": "checkers.record.faults",
    "Validity": "checkers.base.verdict",
    "Verdict": "checkers.base.verdict",
    "Witness": "checkers.base.verdict",
    "Impairment": "simulation.network",
    "World": "simulation.world",
    "simulate": "simulation.world",
}
"""Name -> module that defines it."""

__all__ = list(_NAMES)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _NAMES:
        from difflib import get_close_matches

        near = get_close_matches(name, _NAMES, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'krucible' has no attribute {name!r}{meant}")
    value = globals()[name] = getattr(import_module(_NAMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
