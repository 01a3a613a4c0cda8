"""What a file of one's own states wrongly is refused before nodes are made, in one sentence that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.registry import load_subject, load_workload, usual_options
from harness.spec import Spec, WrongSpec
from system_under_test.own.subject import Subject

ROOT = Path(__file__).parents[3]
TCP_REGISTER = ROOT / "examples" / "tcp_register.py"
PORT, START, OPEN = "    port = 7000\n", "    async def start(self, node, nodes):\n", "    def open(self, server):\n"


def refusal_of(path: Path, old: str, new: str) -> str:
    text = TCP_REGISTER.read_text().replace("import Client, System", "import Client, Crate, Jars, Needs, System")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(WrongSpec) as refusal:
        load_subject(str(path))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port = '7000'", "mine.py: Registers.port must be int, not '7000'"),
        ("port = 70000", "mine.py: Registers.port must be a number from 0 to 65535, not 70000"),
        ("failover_s = 0", "mine.py: Registers.failover_s must be a number from"),
        ("usual = ['nodes']", "mine.py: Registers.usual must be Mapping[str, float], not ['nodes']"),
        ("usual = {'nodes': 'one'}", "mine.py: Registers.usual must be Mapping[str, float], not {'nodes': 'one'}"),
        ("usual = {'nodes': -1}", "mine.py: Registers.usual: nodes must be a number that is not negative, not -1"),
        ("logs = {'metadata': 'raft'}", "whose folder is called __cluster_metadata-0"),
        ("moments = {'snapshot': '(ab'}", "Registers.moments: snapshot is no regular expression"),
        ("needs = {'debian': []}", "mine.py: Registers.needs must be Needs, not {'debian': []}"),
        ("needs = Needs(debian='redis')", "mine.py: Registers.needs: debian must be tuple[str, ...], not 'redis'"),
        ("needs = Needs(jars=Jars(folders='here'))", "Registers.needs: jars: folders must be tuple[str, ...]"),
        ("needs = Needs(files={'a.jar': 'none.jar'})", "files names none.jar, and there is no such file or folder"),
        ("needs = Needs(crates={'server': 'folder'})", "Registers.needs: crates must be Mapping[str, Crate]"),
        ("needs = Needs(crates={'server': Crate('none')})", "the crate none lacks Cargo.toml"),
        ("needs = Needs(user=['me'])", "mine.py: Registers.needs: user must be str, not ['me']"),
        ("needs = Needs(image='redis:7', debian=['redis'])", "the image redis:7 must have its packages already"),
        ("complaints = '(ab'", "mine.py: Registers.complaints is no regular expression: missing )"),
        ("elections = 'no'", "mine.py: Registers.elections must be bool | None, not 'no'"),
        ("client = 'RegisterClient'", "Registers.client must be a class that derives from krucible.Client"),
        ("def status(self, node): ...", "mine.py: Registers.status must be `async def status(…)`"),
        ("failover = 5", "Registers.failover is no part of a System; did you mean 'failover_s'?  If not, begin"),
        ("async def intall(self, node): ...", "Registers.intall is no part of a System; did you mean 'install'?"),
        ("def __init__(self): {}['host']", "mine.py line 35: Registers() raised KeyError: 'host'"),
    ],
)
def test_a_wrong_value_of_a_system_is_named(tmp_path: Path, line: str, words: str) -> None:
    assert words in refusal_of(tmp_path / "mine.py", PORT, f"{PORT}    {line}\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (START, "    async def begin(self, node, nodes):\n", "mine.py: Registers.start is missing"),
        (
            START,
            "    async def start(self, node):\n        nodes = []\n",
            "mine.py: Registers.start must take (self, node, nodes): too many positional arguments",
        ),
        (
            OPEN,
            f"    def __init__(self):\n        pass\n\n{OPEN}",
            "mine.py: RegisterClient.__init__ must take (self, who, servers): too many positional arguments",
        ),
        (OPEN, f"    refused = ConnectionError\n\n{OPEN}", "RegisterClient.refused must be a tuple of classes"),
        (OPEN, f"    refused = ('MOVED',)\n\n{OPEN}", "RegisterClient.refused must be a tuple of classes"),
        (
            OPEN,
            f"    refused = (OSError,)\n\n{OPEN}",
            "lists OSError, which also takes TimeoutError: after it the request may",
        ),
        (
            OPEN,
            f"    refused = (ConnectionError,)\n\n{OPEN}",
            "lists ConnectionError, which also takes ConnectionReset",
        ),
        (OPEN, f"    refused = (EOFError,)\n\n{OPEN}", "lists EOFError, which also takes EOFError"),
        (
            OPEN,
            f"    def leader_(self): ...\n\n{OPEN}",
            "RegisterClient.leader_ is no part of a Client; did you mean 'leader'?",
        ),
        ("import json\n", "import json, sys\nsys.exit(0)\n", "mine.py line 4 cannot be run: SystemExit: 0"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert words in refusal_of(tmp_path / "mine.py", old, new)


def test_a_usual_option_that_no_run_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TCP_REGISTER.read_text().replace(PORT, f"{PORT}    usual = {{'node': 1}}\n"))
    with pytest.raises(WrongSpec, match=r"unknown option in `usual` of .*mine.py 'node'; did you mean 'nodes'\?"):
        usual_options(str(tmp_path / "mine.py"))


@pytest.mark.parametrize("helper", ["_caught_ups", "write_line", "ports"])
def test_a_helper_with_a_name_of_its_own_is_accepted(tmp_path: Path, helper: str) -> None:
    text = TCP_REGISTER.read_text().replace(PORT, f"{PORT}    def {helper}(self): ...\n")
    (tmp_path / "mine.py").write_text(text)
    assert isinstance(load_subject(str(tmp_path / "mine.py")), Subject)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:\n", "own.py line 1: invalid syntax"),
        ("import sys\nsys.exit(0)\n", "cannot be run: SystemExit: 0"),
    ],
)
def test_a_wrong_workload_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(WrongSpec, match=words):
        load_workload(Spec(workload=str(path)))


def test_a_client_inside_of_its_system_is_refused(tmp_path: Path) -> None:
    inner = f"{PORT}    class client(Client):\n        def read(self, key): ...\n\n"
    assert "the client Registers.client stands inside of another class" in refusal_of(tmp_path / "mine.py", PORT, inner)


@pytest.mark.parametrize("sibling", ["helper.py", "helper/__init__.py", "helper/deep.py"])
@pytest.mark.parametrize("main", ["mine.py", "system.py"])
def test_what_a_file_imports_from_beside_it_belongs_to_it(tmp_path: Path, main: str, sibling: str) -> None:
    (tmp_path / "unrelated.py").write_text("raise OSError")
    (tmp_path / sibling).parent.mkdir(exist_ok=True)
    (tmp_path / sibling).write_text("from ports import PORT\n")
    (tmp_path / "ports.py").write_text("PORT = 7001\n")
    module = "helper.deep" if "deep" in sibling else "helper"
    text = TCP_REGISTER.read_text().replace("import json\n", f"import json\nfrom {module} import PORT\n")
    inside = f"    def late(self):\n        from {module} import PORT\n        return PORT\n"
    (tmp_path / main).write_text(text.replace(PORT, f"    port = PORT\n{inside}"))
    subject = load_subject(str(tmp_path / main))
    assert isinstance(subject, Subject) and subject.port == 7001
    assert subject.system.late() == 7001, "also what a method imports"  # type: ignore[attr-defined]
    assert {main, sibling, "ports.py"} <= subject.files.keys()
    assert ("unrelated.py" in subject.files) == (main == "system.py")


def test_another_folder_has_files_of_its_own(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"PORT = {7000 + number}\n")
        text = TCP_REGISTER.read_text().replace("import json\n", "import json\nfrom helper import PORT\n")
        (tmp_path / name / "mine.py").write_text(text.replace(PORT, "    port = PORT\n"))
    assert [load_subject(str(tmp_path / name / "mine.py")).port for name in ("one", "two", "one")] == [7000, 7001, 7000]
