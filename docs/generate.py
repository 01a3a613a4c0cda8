"""Generate the parts of docs/*.md and of the Makefile that are made from the code: tables, drawings, and options.

    python docs/generate.py            rewrite these parts
    python docs/generate.py --check    change nothing; exit 1 and name the pages with outdated parts

A made part stands between two comments, `<!-- made: NAME -->` and `<!-- end -->`.  `PARTS` maps each name to the
function that returns its Markdown.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkers.base.checker import Checker
    from system_under_test.subject import Bug

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SEARCHES = DOCS / "swarm-ledger.json"
"""Ledger of the searches in which swarms found planted bugs (`bench.simulator bugs`)."""
SEARCHES_OF_A_BUG = 5
FLOORS = ("harness", "nemesis", "workloads", "simulation", "system_under_test", "checkers")
_PART = re.compile(r"(<!-- made: ([\w-]+) -->\n).*?((?:# )?<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `|` inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def checkers() -> str:
    """Return a table of the checkers that docs/raft-checkers.md and docs/check.md do not explain."""
    from checkers.by_hand import names
    from checkers.catalog import BY_MODEL, CATALOG, of_logs_and_traces

    elsewhere = {checker.name for checker in of_logs_and_traces()} | set(names())
    shown = [each for each in (CATALOG | BY_MODEL).values() if each.name not in elsewhere]
    rows = [(f"`{c.name}`", c.question, f"`{_file_of(c)}`") for c in shown]
    return table(("checker", "question", "file"), rows)


def trace_events() -> str:
    """Return a table of the events that a user's own server may record."""
    from checkers.base.columns import TRACE_EVENTS

    of_brokers = ("sessions", "broker")
    rows = [(f"`{name}`", meaning) for name, meaning in TRACE_EVENTS.items() if name not in of_brokers]
    return table(("event", "meaning"), rows)


def _file_of(checker: Checker) -> str:
    """Return the file of a checker.  If a shared function created `combine`, the file is that of `judge`."""
    own = checker.judge if "<locals>" in checker.combine.__qualname__ else checker.combine
    return f"{own.__module__.replace('.', '/')}.py"


def bugs() -> str:
    rows = [(f"`{bug.name}`", name, bug.summary, bug.found_by, _shown(bug)) for name, bug in _planted()]
    return table(("planted bug", "subject", "what is wrong", "found by", "shown by"), rows)


def bugs_in_swarms() -> str:
    searches = json.loads(SEARCHES.read_text()) if SEARCHES.exists() else {}
    names = dict.fromkeys(bug.name for _, bug in _planted())  # several subjects may have a bug of one name
    rows = [(f"`{name}`", _in_swarms(found)) for name in names if (found := searches.get(name))]
    return table(("planted bug", "found by a swarm"), rows)


def _planted() -> list[tuple[str, Bug]]:
    """Return (name of the subject, bug) of every planted bug but the canary's, which `krucible list` prints."""
    from harness.registry import SUBJECTS, load_subject

    return [(name, bug) for name in SUBJECTS if name != "canary" for bug in load_subject(name).bugs.values()]


def _in_swarms(searches: Sequence[Mapping[str, Any]]) -> str:
    """Return the medians over all searches: seeds, simulated seconds, and CPU seconds."""
    if missed := sum(not one["rule"] for one in searches):
        cpu_s = sum(one["cpu_s"] for one in searches if not one["rule"])
        return f"not found by {missed} of {len(searches)} searches ({cpu_s:.0f} CPU s)"
    seeds, simulated_s, cpu_s = (median(one[name] for one in searches) for name in ("seeds", "simulated_s", "cpu_s"))
    plural = "es" if len(searches) > 1 else ""
    of = "" if len(searches) == SEARCHES_OF_A_BUG else f" (of {len(searches)} search{plural})"
    return f"{seeds:.0f} seed{'' if seeds == 1 else 's'}, {simulated_s:.0f} s, {cpu_s:.1f} CPU s{of}"


def _shown(bug: Bug) -> str:
    return _faults(bug.shown_by) if bug.in_containers else "simulation only"


def _faults(shown_by: Iterable[str]) -> str:
    return ", ".join(faults.replace(",", " + ") for faults in shown_by) or "no fault needed"


def findings() -> str:
    from ledgers import finding_rows

    from harness.campaign.plans import read_findings
    from harness.real_systems import FINDINGS

    head = ("command", "system", "finding", "published", "seconds", "reproduced", "counterpart valid")
    return table(head, finding_rows(read_findings(), {name: each for name, each in FINDINGS.items() if not each.bug}))


def planted_findings() -> str:
    from ledgers import planted_rows

    from harness.campaign.plans import read_findings

    head = ("command", "planted bug", "faults", "effect on clients", "reproduced", "valid without the bug")
    return table(head, planted_rows(read_findings()))


def clean_runs() -> str:
    from ledgers import clean_rows

    from harness.campaign.plans import read_findings

    return table(("command", "system", "workload", "faults", "valid"), clean_rows(read_findings()))


def hunts() -> str:
    from ledgers import hunt_rows, read_hunts

    head = ("system", "what it promises", "minutes", "tests", "workloads", "faults in force", "found", "seeds")
    return table(head, hunt_rows(read_hunts()))


def kinds() -> str:
    """Return a table of all kinds of fault, with the backends that cannot inject each."""
    from harness.backends.backend import ClusterSpec
    from harness.registry import BACKENDS, load
    from nemesis.kinds import KINDS
    from system_under_test.etcd import EtcdMembers
    from system_under_test.subject import ServerVersions

    wanted = frozenset(need for kind in KINDS.values() for need in kind.needs)
    members, versions = EtcdMembers({}), ServerVersions(("1", "2"))
    spec = ClusterSpec("docs", ("n1",), ("c1",), 0, wanted, members=members, versions=versions)
    backends = {name: load(entry.target)(spec) for name, entry in BACKENDS.items() if name != "in-process"}

    rows = []
    for kind in KINDS.values():
        lacking = (name for name, each in backends.items() if any(each.lacks(need) for need in kind.needs))
        file = f"{kind.resolve.__module__.replace('.', '/')}.py"
        rows.append((f"`{kind.name}`", kind.summary, ", ".join(sorted(kind.needs)), ", ".join(lacking), f"`{file}`"))
    return table(("kind", "what it breaks", "needs", "lacking on", "file"), rows)


def imports(source: Path) -> set[str]:
    """Return the modules of this project that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in FLOORS}


def room_of(module: str, inside: str) -> str | None:
    """Return the room of a module: the folder directly inside `inside` that contains it, or None if there is none."""
    parts, top = module.split("."), inside.split(".") if inside else []
    if parts[: len(top)] != top or len(parts) <= len(top):
        return None
    name = ".".join(parts[: len(top) + 1])
    return parts[len(top)] if (ROOT / name.replace(".", "/") / "__init__.py").is_file() else None


def drawing(inside: str) -> Callable[[], str]:
    """Return a function that draws the rooms of a package with Mermaid: an arrow goes from a room to a room it imports.

    An arrow that a path of other arrows implies is left out, so the drawing shows the order of the floors.
    """

    def draw() -> str:
        import networkx

        graph = networkx.DiGraph()
        for top in [inside.split(".")[0]] if inside else FLOORS:
            for source in sorted((ROOT / top).rglob("*.py")):
                module = ".".join(source.relative_to(ROOT).with_suffix("").parts)
                if (here := room_of(module, inside)) is None:
                    continue
                graph.add_node(here)
                there = {room_of(name, inside) for name in imports(source)} - {here, None}
                graph.add_edges_from((here, room) for room in there)
        if not networkx.is_directed_acyclic_graph(graph):
            raise SystemExit(f"the rooms of {inside or 'the tree'} import in a circle: {networkx.find_cycle(graph)}")
        lines = [f"    {a} --> {b}" for a, b in sorted(networkx.transitive_reduction(graph).edges)]
        return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])

    return draw


def make_options() -> str:
    """Return the make variables that stand for options of `run`, and the definition of OPTIONS that passes them on."""
    from harness.spec import OPTIONS, Spec, option_of

    made = {name: option.make for name, option in OPTIONS.items() if option.make}
    plain = Spec()
    shown, passed = [], []
    for name, variable in made.items():
        default = getattr(plain, name)
        given = f"$(filter-out 0,$({variable}))" if default is False else f"$({variable})"
        value = (
            "" if default is False else f" '$({variable})'" if isinstance(default, str | None) else f" $({variable})"
        )
        passed.append(f"\t$(if {given},{option_of(name)}{value})")
        usual = "1" if default is False else default if default not in (0, "", None) else "…"
        shown.append(f"#   {variable}={usual:g}" if isinstance(usual, float) else f"#   {variable}={usual}")
        shown[-1] = f"{shown[-1]:<30} {OPTIONS[name].help}"
    takes = "\n".join(["TAKES_TEST := KEEP \\", *(f"\t{variable} \\" for variable in made.values())])
    return "\n".join(shown) + "\n\n" + takes + "\n\nOPTIONS = \\\n" + " \\\n".join(passed) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "make-options": make_options,
    "checkers": checkers,
    "trace-events": trace_events,
    "bugs": bugs,
    "bugs-in-swarms": bugs_in_swarms,
    "findings": findings,
    "planted-findings": planted_findings,
    "clean-runs": clean_runs,
    "hunts": hunts,
    "kinds": kinds,
    "drawing-tree": drawing(""),
    "drawing-checkers": drawing("checkers"),
    "drawing-harness": drawing("harness"),
    "drawing-kraft": drawing("system_under_test.kraft"),
}


def renewed(text: str) -> str:
    """Return a page with all made parts regenerated.  Raises KeyError for an unknown part."""
    return _PART.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}\n{m[3]}", text)


def main(arguments: Sequence[str]) -> int:
    drifted = []
    for page in [ROOT / "README.md", ROOT / "Makefile", *sorted(DOCS.rglob("*.md"))]:
        old = page.read_text()
        new = renewed(old)
        if page.parent.name == "notebook":
            new = re.sub(r"\]\(\.\./(?=examples/)", "](../../", new)
        if new != old:
            drifted.append(str(page.relative_to(ROOT)))
            if "--check" not in arguments:
                page.write_text(new)
    print(f"drifted from the code: {', '.join(drifted)}" if drifted else "every made part agrees with the code")
    return 1 if drifted and "--check" in arguments else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
