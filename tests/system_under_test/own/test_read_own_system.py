"""What a file of one's own states wrongly is refused before nodes are made, in one sentence that names the place.

It may import its client's library at the top, on a machine that lacks it; runs share its large files.
"""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from harness.registry import load_subject, usual_options
from harness.spec import WrongSpec
from system_under_test.own.files_handed_over import LINKED_FROM_BYTES, link_or_copy
from system_under_test.own.read_own_system import NoSystem, read_files
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
            "lists OSError, which also covers TimeoutError: after it the request may",
        ),
        (
            OPEN,
            f"    refused = (ConnectionError,)\n\n{OPEN}",
            "lists ConnectionError, which also covers ConnectionReset",
        ),
        (OPEN, f"    refused = (EOFError,)\n\n{OPEN}", "lists EOFError, which also covers EOFError"),
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


def test_a_client_inside_of_its_system_is_refused(tmp_path: Path) -> None:
    inner = f"{PORT}    class client(Client):\n        def read(self, key): ...\n\n"
    assert "the client Registers.client is defined inside another" in refusal_of(tmp_path / "mine.py", PORT, inner)


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


IMPORTS = """
import no_such_library
import no_such_library.deep.part
from no_such_library.errors import Refused, Timeout as TimedOut
import json
"""


def written(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_names_of_a_missing_library_can_be_listed_and_derived_from(tmp_path: Path) -> None:
    lines = (
        "refused = (Refused, TimedOut, no_such_library.errors.Other)\nclass Own(Refused): ...\nread = json.loads('7')\n"
    )
    module = read_files(written(tmp_path, IMPORTS + lines))
    assert [kind.__name__ for kind in module.refused] == ["Refused", "Timeout", "Other"]
    assert issubclass(module.Own, module.Refused)
    assert module.read == 7, "a library that is there is the real one"


@pytest.mark.parametrize("call", ["no_such_library.connect()", "Refused('late')", "no_such_library.deep.part.run(1)"])
def test_a_missing_library_does_nothing(call: str, tmp_path: Path) -> None:
    module = read_files(written(tmp_path, f"{IMPORTS}\ndef start():\n    return {call}\n"))
    with pytest.raises(ModuleNotFoundError, match=r"is not installed here: call .* in a method of the client"):
        module.start()
    with pytest.raises(NoSystem, match="cannot be run: ModuleNotFoundError: no_such_library"):
        read_files(written(tmp_path, f"{IMPORTS}\n{call}\n"))


def test_no_stand_in_outlives_the_reading_of_its_file(tmp_path: Path) -> None:
    read_files(written(tmp_path, IMPORTS))
    assert not [name for name in sys.modules if name.startswith("no_such_library")]


def test_only_what_the_files_import_themselves_is_replaced(tmp_path: Path) -> None:
    indirect = "try:\n    __import__('other_missing_library')\nexcept ImportError:\n    there = False\n"
    assert not read_files(written(tmp_path, IMPORTS + indirect)).there


def test_a_client_node_must_have_every_library(tmp_path: Path) -> None:
    with pytest.raises(NoSystem, match="No module named 'no_such_library'"):
        read_files(tmp_path / "mine.py", files={"mine.py": IMPORTS})


def test_a_file_may_have_the_name_of_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import no_such_server\nrefused = no_such_server.Refused\n"
    assert read_files(written(tmp_path, text, "no_such_server.py")).refused.__name__ == "Refused"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "krucible" / "files"


def test_two_runs_share_a_large_file(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    source.chmod(0o755)
    first, second = tmp_path / "first", tmp_path / "second"
    link_or_copy(source, first)
    link_or_copy(source, second)
    assert first.samefile(second) and not first.samefile(source)
    assert first.read_bytes() == source.read_bytes()
    assert first.stat().st_mode & 0o777 == 0o555
    source.write_bytes(b"y" * LINKED_FROM_BYTES)
    link_or_copy(source, third := tmp_path / "third")
    assert (first.read_bytes()[:1], third.read_bytes()[:1]) == (b"x", b"y")


def test_a_shared_file_that_was_changed_is_made_again(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    (shared,) = cache.iterdir()
    shared.chmod(0o644)
    shared.write_bytes(b"z")
    link_or_copy(source, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == source.read_bytes()
    assert [path.name for path in cache.iterdir()] == [shared.name]


def test_a_small_file_is_a_copy_of_its_own(tmp_path: Path, cache: Path) -> None:
    (source := tmp_path / "notes").write_bytes(b"x" * (LINKED_FROM_BYTES - 1))
    link_or_copy(source, tmp_path / "first")
    link_or_copy(source, tmp_path / "second")
    assert not (tmp_path / "first").samefile(tmp_path / "second")
    assert not cache.exists()


def test_without_hard_links_it_is_a_copy(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    (source := tmp_path / "server").write_bytes(b"x" * LINKED_FROM_BYTES)
    link_or_copy(source, tmp_path / "first")
    assert (tmp_path / "first").read_bytes() == source.read_bytes()


PRINTING_SYSTEM = """
from beside import WORD
from inner.deep import DEPTH
print(WORD, DEPTH)
"""
READ = "import sys; from pathlib import Path; from system_under_test.own.read_own_system import read_files; "
READ += "read_files(Path(sys.argv[1]))"


def compiled_of_another(path: Path, text: str, other: str) -> None:
    """Leave compiled code beside a file that carries its time and size, and is that of another text."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(other)
    py_compile.compile(str(path), doraise=True)
    status = path.stat()
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("relative", [False, True])
def test_compiled_code_beside_the_files_of_a_system_is_not_run(relative: bool, tmp_path: Path) -> None:
    main = tmp_path / "system.py"
    main.write_text(PRINTING_SYSTEM)
    compiled_of_another(tmp_path / "beside.py", "WORD = 'true'\n", "WORD = 'lies'\n")
    compiled_of_another(tmp_path / "inner" / "deep.py", "DEPTH = 1\n", "DEPTH = 2\n")
    before = sorted(tmp_path.rglob("*"))
    folder, name = (tmp_path.parent, f"{tmp_path.name}/system.py") if relative else (ROOT, str(main))
    found = []
    for argv in (["-c", READ, name], [name]):
        usual = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, *argv], cwd=folder, env=usual, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
    assert found == ["true 1\n", "lies 2\n"], "Python itself runs the compiled code"
    assert sorted(tmp_path.rglob("*")) == before
