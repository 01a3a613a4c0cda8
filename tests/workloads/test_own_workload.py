"""A workload from a file of one's own: refused in one sentence, or run and judged."""

from __future__ import annotations

import os
import py_compile
import re
from pathlib import Path

import pytest
from canary_run import canary_run

from checkers.base.results import as_object
from checkers.record.files import BrokenFile
from harness.judge.judge_run import checkers_for, demands_of, judge, spec_of
from harness.registry import load_workload
from harness.run.refused_before_start import check_spec
from harness.spec import Spec, WrongSpec
from system_under_test.client import Request

EXAMPLE = Path(__file__).parents[2] / "examples" / "workloads" / "hot_register.py"
NO_WRITE = "must name at least one of its functions in writes, .* its functions: read, write"
NONE_STATED = "from workloads.workload import Workload\nclass Mine(Workload): ...\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no file"),
        ("def broken(:\n", "line 1: invalid syntax"),
        ("1 / 0\n", "cannot be run: ZeroDivisionError"),
        ("from workloads.registers import Register\n", "must define one class that derives from Workload"),
        (NONE_STATED, "Mine does not state its name and its summary"),
        (EXAMPLE.read_text().replace('"write": "write"', '"write": "shout"'), "no client can have the function shout"),
        (EXAMPLE.read_text().replace('frozenset({"write"})', "frozenset()"), NO_WRITE),
        (EXAMPLE.read_text().replace('frozenset({"write"})', 'frozenset({"wirte"})'), NO_WRITE),
    ],
)
def test_what_is_no_workload_is_refused_in_one_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WrongSpec, match=words) as refusal:
        load_workload(Spec(workload=str(path)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("checkers", "words"),
    [
        ('("linearizabilty",)', "there is no checker 'linearizabilty'; did you mean 'linearizability'?"),
        ("()", "it names no checker of what clients saw"),
        ('("recovery",)', "it names no checker of what clients saw"),
        ('"linearizability"', "its checkers are the text 'linearizability': write a tuple"),
    ],
)
def test_a_workload_that_no_checker_would_judge_is_refused_before_the_run_and_at_judging(
    checkers: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.read_text().replace('("linearizability",)', checkers))
    spec = Spec(subject="canary", workload=str(path), nemesis="none")
    with pytest.raises(WrongSpec, match=re.escape(words)):
        check_spec(spec)
    with pytest.raises(WrongSpec, match=re.escape(words)):
        checkers_for(spec, demands_of(spec))


@pytest.mark.parametrize(
    ("final", "words"),
    [
        ('[Request("raed", "k0")]', "workload hot-register invokes 'raed'; its functions: read, write"),
        ('[Request("read", self.nmaes[0])]', "mine.py: set_up or final raised AttributeError: "),
        ('["read"]', "invokes 'read', which is no Request"),
        ('[Request("read", 0)]', "invokes read with 0 as its key, which must be a text"),
        ('[Request("write", "k0", "7")]', "invokes write with '7' as its value, which must be a whole number"),
        ('[Request("write", "k0", payload=[7])]', "invokes write with [7] as its payload, which must be a text"),
    ],
)
def test_a_final_request_that_no_client_can_be_given_is_refused_before_the_run(
    final: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.read_text().replace('reads_of("read", self.names)', final))
    with pytest.raises(WrongSpec, match=re.escape(words)):
        check_spec(Spec(subject="canary", workload=str(path), nemesis="none"))


def test_what_a_client_can_be_given_is_not_refused() -> None:
    workload = load_workload(Spec(workload=str(EXAMPLE)))
    for request in (Request("create", "k0"), Request("read", "k0"), Request("write", None, 7, 8, "[]")):
        assert workload.wrong_request(request) == ""


def run_of(outside: Path, folder: Path, text: str = EXAMPLE.read_text()) -> Path:
    """A short run of the canary with this text, by default the example, as the user's workload; the run's folder."""
    outside.write_text(text)
    return canary_run(folder, seconds=4.0, seed=5, keys=10, workload=str(outside), rate_hz=200.0)


def test_a_workload_from_a_file_is_run_and_judged_with_what_was_kept_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "hot_register.py"
    root = run_of(outside, tmp_path / "results")
    outside.write_text("1 / 0")
    assert Path(spec_of(root).workload).is_relative_to(root)
    results = as_object(judge(root, None, lambda _: None, report=False))
    assert results["checkers"]["linearizability"]["verdict"] == "valid"
    assert results["verdict"] == "valid", results["checkers"]
    again = as_object(judge(root, None, lambda _: None, report=False))
    assert again["verdict"] == "valid", "what Python compiled of the kept file is no change of the run"

    kept = root / "workload" / outside.name
    unchanged = kept.read_text()
    kept.write_text(unchanged + "raise SystemExit\n")
    with pytest.raises(
        BrokenFile, match=r"workload/hot_register.py was changed after the run .*so nothing in workload/"
    ):
        judge(root, None, lambda _: None, report=False)
    kept.write_text(unchanged)

    (root / "workload" / "numpy").symlink_to(tmp_path)
    with pytest.raises(BrokenFile, match=r"workload/numpy is a symbolic link"):
        judge(root, None, lambda _: None, report=False)
    (root / "workload" / "numpy").unlink()

    test = (root / "test.json").read_text()
    (root / "workload" / "other.py").write_text("raise SystemExit\n")
    (root / "test.json").write_text(test.replace("hot_register.py", "other.py"))
    with pytest.raises(BrokenFile, match=r"test.json was changed after the run"):
        judge(root, None, lambda _: None, report=False)
    (root / "test.json").write_text(test)
    (root / "workload" / "other.py").unlink()
    assert as_object(judge(root, None, lambda _: None, report=False))["verdict"] == "valid"

    kept.unlink()
    outside.write_text(EXAMPLE.read_text())
    with pytest.raises(BrokenFile, match=r"no copy of its workload .*hot_register.py"):
        judge(root, None, lambda _: None, report=False)


def test_a_workload_is_run_from_its_source_and_not_from_what_python_compiled_of_another(tmp_path: Path) -> None:
    """Python itself runs compiled code if it carries the time and the size of the source."""
    path = tmp_path / "mine.py"
    text = EXAMPLE.read_text()
    path.write_text(text.replace("hot-register", "bad-register"))
    compiled = Path(py_compile.compile(str(path), doraise=True) or "")
    kept = path.stat()
    path.write_text(text)
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert path.stat().st_size == kept.st_size and compiled.is_file()
    assert load_workload(Spec(workload=str(path))).name == "hot-register"


def test_a_checker_that_the_workload_names_and_that_lacks_its_input_stands_in_the_results(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace('("linearizability",)', '("linearizability", "log-order")')
    root = run_of(tmp_path / "mine.py", tmp_path / "results", text)
    results = as_object(judge(root, None, lambda _: None, report=False))
    left_out = results["checkers"]["log-order"]
    assert left_out["verdict"] == "not applicable"
    assert left_out["reason"].startswith("the workload names log-order, but this run lacks what it needs: logs, traces")
    assert results["verdict"] == "valid"
