"""A small file whose only importer stands beside it joins that file (CONTRIBUTING.md, "Is it one subject a file?")."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("harness", "nemesis", "checkers", "workloads", "simulation", "system_under_test", "krucible")
CODE_LEAST = 40
JOINED_MOST = 600
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def test_small_files_join_their_only_importer() -> None:
    small = {path: importer for path, importer in _with_one_importer() if _should_join(path, importer)}
    found = {str(path.relative_to(ROOT)): importer.name for path, importer in small.items()}
    assert found == {}, "join each with its only importer"


def code_lines(text: str) -> int:
    """Lines that hold a token of code."""
    said = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = (t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in _NO_CODE)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - said)


def _should_join(path: Path, importer: Path) -> bool:
    text = path.read_text()
    code, lines = code_lines(text), text.count("\n")
    theory = len((ast.get_docstring(ast.parse(text)) or "").splitlines())
    return code < CODE_LEAST and theory <= code and lines + importer.read_text().count("\n") <= JOINED_MOST


def _with_one_importer() -> Iterator[tuple[Path, Path]]:
    """(a file, the one file that imports it, which stands beside it), of files that no test imports."""
    files = [path for room in (*ROOMS, "bench", "docs", "tests") for path in sorted((ROOT / room).rglob("*.py"))]
    importers: dict[str, list[Path]] = {}
    for path in files:
        for module in set(_imported(path.read_text())):
            importers.setdefault(module, []).append(path)
    for path in files:
        by = importers.get(".".join(path.relative_to(ROOT).with_suffix("").parts), [])
        of_a_room = path.relative_to(ROOT).parts[0] in ROOMS and path.name != "__init__.py"
        if of_a_room and len(by) == 1 and by[0].parent == path.parent and by[0].name != "__init__.py":
            yield path, by[0]


def _imported(text: str) -> Iterator[str]:
    """Every module that a text may import; of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
