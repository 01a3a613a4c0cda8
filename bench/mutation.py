"""Measure the quality of the tests of a room: `make mutation ROOM=checkers/run_quality`.

    python -m bench.mutation checkers/run_quality/vacuity.py [--tests FOLDER …] [--sample 200] [--seed 1]

mutmut changes one operator, number, condition or argument of a function at a time and runs the tests that call this
function.  A change that no test detects SURVIVES: either the tests lack a case, or the change makes no difference
(equivalent).  Changes that affect only string constants are not tried, because reports may be worded in many ways.

mutmut cannot change decorated functions (such as kernels that Numba compiles, which have brute-force tests) and
constants of modules and classes, so the result says nothing about them.

All work is done in a copy of the tree.  --sample draws mutants with a fixed seed, for a room with thousands of mutants.
The exit code is 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.stats import status_by_exit_code

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

ROOT = Path(__file__).parents[1]
TESTED = ("checkers", "harness", "nemesis", "workloads", "system_under_test", "simulation", "krucible")
ALSO = ("examples", "bench", "tests", "docs", "results", "pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="+", help="folders or files below checkers/, harness/ …")
    parser.add_argument("--tests", nargs="+", help="by default, the folders of tests/ that mirror the rooms")
    parser.add_argument("--sample", type=int, help="number of mutants to try, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    chosen = parser.parse_args()
    files = [file for room in chosen.room for file in files_of(room)]
    tests = chosen.tests or sorted({tests_of(room) for room in chosen.room})
    with tempfile.TemporaryDirectory(prefix="krucible-mutation-") as folder, chdir(folder):
        copy_tree(Path(folder))
        configure(files, tests)
        mutants = {name: mutant for file in files for name, mutant in mutants_of(file)}
        drawn = random.Random(chosen.seed).sample(sorted(mutants), len(mutants))
        changed = ((name, change_of(*mutants[name])) for name in drawn)
        changes = dict(islice(((name, change) for name, change in changed if change), chosen.sample))
        names = sorted(changes)
        of_all = f"{len(names)} mutants, drawn from {len(mutants)}" if chosen.sample else f"{len(names)} mutants"
        print(f"{of_all}, of {len(files)} files, tested by {' '.join(tests)}", flush=True)
        outcomes = outcomes_of(names, files)
    found = Counter(outcomes.values())
    for name, outcome in sorted(outcomes.items()):
        if outcome not in ("killed", "timeout"):
            print(f"\n{outcome}: {name}\n{changes[name]}")
    killed = found["killed"] + found["timeout"]
    print(
        f"\n{' '.join(chosen.room)}, seed {chosen.seed}: {killed} of {len(names)} mutants killed, " + str(dict(found))
    )
    return 0 if killed == len(names) else 1


def files_of(room: str) -> list[Path]:
    path = ROOT / room
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [file.relative_to(ROOT) for file in found]


def tests_of(room: str) -> str:
    """Return the folder of tests that mirrors a room; for a file, the one that mirrors its folder."""
    path = Path("tests") / room
    while not (ROOT / path).is_dir():
        path = path.parent
    return str(path)


def mutants_of(file: Path) -> Iterator[tuple[str, tuple[Function, Function]]]:
    """Yield each mutant of a file: its name for mutmut, the original function and the changed one."""
    mutated = mutate_file_contents(str(file), file.read_text())
    functions = {node.name: node for node in ast.walk(ast.parse(mutated.code)) if isinstance(node, Function)}
    module = ".".join(file.with_suffix("").parts)
    for name in mutated.mutant_names:
        short = name.rpartition(".")[2]
        original = functions[short.rpartition("__mutmut_")[0] + "__mutmut_orig"]
        yield f"{module}.{name}", (original, functions[short])


def change_of(original: Function, mutant: Function) -> str:
    """Return the lines that differ; "" if only string constants differ."""
    if without_words(original) == without_words(mutant):
        return ""
    difference = difflib.unified_diff(lines_of(original), lines_of(mutant), lineterm="", n=1)
    return "\n".join(line for line in difference if line[:3] not in ("---", "+++"))


def lines_of(function: Function) -> list[str]:
    return ast.unparse(function).splitlines()[1:]


def without_words(function: Function) -> list[str]:
    """Return the lines of a function with every string constant replaced by one constant."""

    class Blank(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant("") if isinstance(node.value, str) else node

        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
            return ast.Constant("")

    return ast.unparse(Blank().visit(ast.parse(ast.unparse(function)))).splitlines()[1:]


def copy_tree(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def configure(files: list[Path], tests: list[str]) -> None:
    """Write the configuration that mutmut reads from the current folder."""
    settings = {
        "source_paths": TESTED,
        "only_mutate": files,
        "also_copy": [name for name in ALSO if Path(name).exists()],
        "pytest_add_cli_args": ["-m", "not nightly and not spark", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": tests,
        "timeout_multiplier": [5],
    }
    lines = ["[mutmut]"]
    for key, values in settings.items():
        lines += [f"{key}=", *(f"    {value}" for value in values)] if len(values) > 1 else [f"{key}={values[0]}"]
    Path("setup.cfg").write_text("\n".join(lines) + "\n")


def outcomes_of(names: list[str], files: list[Path]) -> dict[str, str]:
    """Run mutmut on the mutants, and return the outcome of each."""
    mutmut = Path(sys.executable).parent / "mutmut"
    done = subprocess.run(
        [mutmut, "run", "--max-children", "1", *names], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        print(done.stdout[-4000:])
        raise SystemExit(3)
    codes: dict[str, int | None] = {}
    for file in files:
        meta = Path(f"mutants/{file}.meta")
        codes |= json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
    return {name: status_by_exit_code[codes[name]] for name in names}


if __name__ == "__main__":
    sys.exit(main())
