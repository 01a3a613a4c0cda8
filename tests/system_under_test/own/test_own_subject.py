"""Reading a system of one's own, and a whole run of one that comes in through the door."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from command_line import NO_SPARK, krucible
from docker_things import needs_docker, needs_namespaces
from journals import write_header

from checkers.base.results import as_object
from checkers.record.faults import Achieved
from checkers.record.files import BrokenFile
from checkers.record.run_record import RunRecord
from harness.cli.machine import known_names
from harness.judge.judge_run import judge, spec_of
from harness.registry import check_names, load_subject, offered_workloads
from harness.run.exceptions_for_users import sentences
from harness.spec import Spec, WrongSpec
from system_under_test.own.files_handed_over import kept
from system_under_test.own.read_own_system import BrokenSystem, CodeMistake
from system_under_test.own.subject import Subject
from system_under_test.subject import Completed

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TCP_REGISTER = ROOT / "examples" / "tcp_register.py"


def test_a_file_is_a_subject_with_defaults_for_all_but_start() -> None:
    subject = load_subject(str(TCP_REGISTER))
    assert subject.name == "tcp_register"
    assert set(offered_workloads(subject)) == {"register", "repeated-register", "convergence"}
    assert subject.declares.nodes and subject.declares.faults
    assert not (subject.declares.elections or subject.declares.leaders or subject.declares.logs)


def test_a_folder_is_a_subject_whose_files_see_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "parts.py").write_text("PORT = 1234\n")
    text = TCP_REGISTER.read_text().replace("port = 7000", "port = PORT")
    (folder / "system.py").write_text("from parts import PORT\n" + text)
    subject = load_subject(str(folder))
    assert (subject.name, subject.port) == ("mine", 1234)
    assert set(subject.client_config(seed=1, bug=None)["files"]) == {"parts.py", "system.py"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no file"),
        ("def broken(:\n", "mine.py line 1: invalid syntax"),
        ("1 / 0\n", "cannot be run: ZeroDivisionError: division by zero"),
        ("from krucible import System\n", "mine.py must define a class that derives from krucible.System"),
        (
            "from krucible import System\nclass A(System): ...\n",
            "mine.py must define a class that derives from krucible.Client",
        ),
        (
            "from krucible import Client, System\nclass A(System): ...\nclass B(Client): ...\nclass C(B): ...\n",
            "mine.py defines the clients B and C: say which one A has, with `client = C`",
        ),
    ],
)
def test_what_is_no_system_is_refused_in_one_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WrongSpec, match=words) as refusal:
        load_subject(str(path))
    assert "\n" not in str(refusal.value)


TWO = """
from krucible import Client, System

class One(System):
    "The first."
    port = 1

    async def start(self, node, nodes): ...

class Reads(Client):
    def read(self, key): ...

class Writes(Reads):
    def write(self, key, value): ...

class Two(One):
    "The second."
    port, client = 2, Reads

One.client = Writes
"""


def test_a_file_may_hold_several_systems_and_a_name_behind_a_colon_says_which(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TWO)
    first, second = load_subject(str(path)), load_subject(f"{path}:Two")
    assert (first.port, first.summary, first.functions) == (1, "The first.", {"create", "read", "write"})
    assert (second.port, second.summary, second.functions) == (2, "The second.", {"create", "read"})
    assert second.client_config(seed=1, bug=None)["client"] == "krucible_own_system:Reads"
    second.keep(tmp_path / "run")  # type: ignore[attr-defined]
    again = load_subject(str(kept(tmp_path / "run")))
    assert again.summary == "The second."
    with pytest.raises(WrongSpec, match=r"mine.py defines no system 'Three'; it defines One, Two"):
        load_subject(f"{path}:Three")


NEEDS_A_FILE = """
from krucible import Client, Needs, System

class Mine(System):
    needs = Needs(files={"server.jar": "my_server.jar"})

    async def start(self, node, nodes): ...

class MineClient(Client):
    def read(self, key): ...
"""


async def test_the_copy_of_a_run_holds_the_sources_of_its_programs(tmp_path: Path) -> None:
    (folder := tmp_path / "server").mkdir()
    for name in ("Cargo.toml", "Cargo.lock", "src/main.rs", "fix.patch", "target/release/server"):
        (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    needs = 'crates={"server": Crate("server", {"library": "fix.patch"})}'
    text = NEEDS_A_FILE.replace("Needs, System", "Crate, Needs, System")
    (mine := tmp_path / "mine.py").write_text(text.replace('files={"server.jar": "my_server.jar"}', needs))
    load_subject(str(mine)).keep(tmp_path / "run")  # type: ignore[attr-defined]
    copy = tmp_path / "run" / "subject" / "server"
    assert {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()} == {
        "Cargo.toml",
        "Cargo.lock",
        "src/main.rs",
        "fix.patch",
    }
    assert load_subject(str(kept(tmp_path / "run"))).needs.crates["server"].folder == "server"
    (folder / "Cargo.lock").unlink()
    with pytest.raises(WrongSpec, match=r"lacks Cargo.lock, which pins what is built: run `cargo generate-lockfile`"):
        load_subject(str(mine))


@pytest.mark.parametrize("main", ["mine.py", "system.py"])
async def test_the_copy_of_a_run_holds_what_its_nodes_need_from_its_folder(tmp_path: Path, main: str) -> None:
    (path := tmp_path / "mine" / main).parent.mkdir()
    path.write_text(NEEDS_A_FILE.replace("{", '{"data": "../data", '))
    (jar := path.with_name("my_server.jar")).write_text("a jar")
    (data := tmp_path / "data").write_text("from outside")
    load_subject(str(path)).keep(tmp_path / "run")  # type: ignore[attr-defined]
    assert (tmp_path / "run" / "subject" / "my_server.jar").read_text() == "a jar"
    again = load_subject(str(kept(tmp_path / "run")))
    assert again.needs.files == {"data": "../data", "server.jar": "my_server.jar"}
    with pytest.raises(BrokenSystem, match=f"{main}: needs: ../data cannot be read: FileNotFoundError"):
        await again.install([running_node()], seed=1, bug=None)
    for file in (jar, data):
        file.unlink()
        with pytest.raises(WrongSpec, match="there is no such file or folder beside the system"):
            load_subject(str(path))
        file.write_text("again")


def test_a_file_that_is_read_beside_the_system_and_is_not_kept_is_named_with_what_to_do(tmp_path: Path) -> None:
    (path := tmp_path / "mine" / "system.py").parent.mkdir()
    path.write_text("from pathlib import Path\nCONF = Path(__file__).with_name('my.conf').read_text()\n" + NEEDS_A_FILE)
    path.with_name("my.conf").write_text("port 7000")
    path.with_name("my_server.jar").write_text("a jar")
    load_subject(str(path.parent)).keep(tmp_path / "run")  # type: ignore[attr-defined]
    with pytest.raises(WrongSpec, match=r"system.py line 2 cannot be run: .*my.conf'; .*: read this file in `start`"):
        load_subject(str(kept(tmp_path / "run")))


def test_a_run_whose_copy_of_its_system_is_missing_or_broken_is_not_judged_with_the_file_of_today(
    tmp_path: Path,
) -> None:
    write_header(tmp_path, spec=Spec(subject=str(TCP_REGISTER)).to_json())
    with pytest.raises(BrokenFile, match=r"no copy of its system .*tcp_register.py"):
        spec_of(tmp_path)
    load_subject(str(TCP_REGISTER)).keep(tmp_path)  # type: ignore[attr-defined]
    assert spec_of(tmp_path, trust=True).subject == str(tmp_path / "subject" / "tcp_register.py")
    (tmp_path / "subject" / "main.json").write_text("[]")
    with pytest.raises(BrokenFile, match="does not name the system of the run"):
        spec_of(tmp_path)


def test_files_added_to_a_run_of_a_bundled_system_do_not_replace_it(tmp_path: Path) -> None:
    write_header(tmp_path, spec=Spec(subject="canary").to_json())
    load_subject(str(TCP_REGISTER)).keep(tmp_path)  # type: ignore[attr-defined]
    assert spec_of(tmp_path).subject == "canary"


def test_a_workload_whose_functions_are_missing_is_refused_before_nodes_are_made(tmp_path: Path) -> None:
    done = krucible("run", "--results", str(tmp_path), "--subject", str(TCP_REGISTER), "--workload", "list-append")
    assert done.returncode == 3
    assert "its client has no transact_lists; it runs: register, repeated-register, convergence" in done.stderr


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("namespaces", marks=needs_namespaces),
        pytest.param("docker", marks=(*needs_docker, pytest.mark.nightly)),
    ],
)
def test_a_file_from_outside_is_run_and_judged_with_what_was_kept_of_it(backend: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "tcp_register.py"
    outside.parent.mkdir()
    outside.write_text(TCP_REGISTER.read_text())
    argv = [sys.executable, "-m", "harness", "run", "--subject", str(outside), "--backend", backend, "--nodes", "3"]
    argv += ["--nemesis", "kill", "--time-limit", "16", "--rate", "40", "--keys", "4", "--concurrency", "8"]
    argv += ["--results", str(tmp_path / "results"), "--seed", "3", *NO_SPARK]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False)
    root = tmp_path / "results" / "latest"
    results = json.loads((root / "results.json").read_text())
    assert done.returncode in (0, 1, 2), done.stderr + done.stdout
    assert results["checkers"]["linearizability"]["looked_at"]["operations"] > 50
    assert any(fault.achieved is Achieved.INSTALLED for fault in RunRecord(root).faults)
    outside.unlink()  # the run is judged with the copied file
    assert Path(spec_of(root.resolve()).subject).is_relative_to(root.resolve())
    again = as_object(judge(root.resolve(), None, lambda _: None, report=False))
    assert again["verdict"] == results["verdict"]


def with_method(tmp_path: Path, method: str) -> Subject:
    """The example with one more method in its system, whose body is line 37."""
    path = tmp_path / "mine.py"
    path.write_text(TCP_REGISTER.read_text().replace("    async def start(", f"{method}\n\n    async def start("))
    return load_subject(str(path))


def running_node() -> Any:
    async def of_the_node(*_: object, **__: object) -> object:
        return "running"

    async def ran(*_: object, **__: object) -> object:
        return Completed(0, b"", b"")

    return SimpleNamespace(
        name="n1",
        address="",
        data_dir="/d",
        log_dir="/l",
        trace_dir="/t",
        python=["python3"],
        state=of_the_node,
        run=ran,
        write=of_the_node,
    )


async def installed(subject: Any) -> tuple[Any, Any]:
    node = running_node()
    await subject.install([node], seed=1, bug=None)
    return subject, node


async def test_a_status_that_fails_says_nothing_and_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject, node = with_method(tmp_path, "    async def status(self, node):\n        {}['leader']"), running_node()
    assert subject.declares.leaders
    await subject.install([node], seed=1, bug=None)
    for _ in range(3):
        assert await subject.status(node) is None
    assert [record.message for record in caplog.records] == ["mine.py line 37: status raised KeyError: 'leader'"]


@pytest.mark.parametrize("name", ["mine.py", "{folder}/mine.py"])
async def test_a_start_that_raises_is_a_sentence_that_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(TCP_REGISTER.read_text().replace("        await node.write(", "        node.wriet(", 1))
    subject, node = await installed(load_subject(name.format(folder=tmp_path)))
    with pytest.raises(BrokenSystem) as problem:
        await subject.start(node)
    (sentence,) = sentences(problem.value)
    assert sentence == "mine.py line 37: start raised AttributeError: 'OwnNode' object has no attribute 'wriet'"


async def test_a_mistake_in_ready_ends_the_run_also_if_the_path_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_method(tmp_path, "    async def ready(self, nodes):\n        return nodse[0]")
    monkeypatch.chdir(tmp_path)
    subject, node = await installed(load_subject("mine.py"))
    with pytest.raises(CodeMistake, match=r"^mine\.py line 37: NameError: name 'nodse' is not defined"):
        await subject.ready([node])


async def test_what_ready_raises_is_what_is_waited_for(tmp_path: Path) -> None:
    subject, node = await installed(with_method(tmp_path, "    async def ready(self, nodes):\n        return 1 / 0"))
    assert await subject.ready([node]) == "mine.py line 37: ready raised ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("return 5", "mine.py: status returned 5, where node.reports(epoch, leader) or None is expected"),
        ("return node.reports('3', None)", "mine.py: status returned the epoch '3', which is no whole number"),
        (
            "return node.reports(3, '10.0.0.1')",
            "mine.py: status returned the leader '10.0.0.1', which is no node's name: n1, or None "
            "(it is the address of n1)",
        ),
    ],
)
async def test_a_status_of_the_wrong_form_is_none_and_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, words: str
) -> None:
    subject, node = await installed(with_method(tmp_path, f"    async def status(self, node):\n        {line}"))
    assert await subject.status(node) is None
    assert [record.message for record in caplog.records] == [f"{words}; the harness treats it as None"]
    with pytest.raises(BrokenSystem) as problem:
        await subject.ready([node])
    assert str(problem.value) == words


def starting(tmp_path: Path, body: str) -> Subject:
    path = tmp_path / "mine.py"
    before, after = TCP_REGISTER.read_text().split('        await node.write("server.py", SERVER)\n', 1)
    path.write_text(f"{before}        {body}\n{after}")
    return load_subject(str(path))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "mine.py: start returned None, where the command of a server that stays in the foreground"),
        ("return ''", "mine.py: start returned an empty line"),
        ("return ['redis-server', '--port', 7000]", "mine.py: start returned the word 7000, which is int: write str("),
        ("return {'a/b': 'true'}", "mine.py: start returned a process with the name 'a/b'"),
        ("open('/nowhere/of.conf')", "mine.py line 37: start raised FileNotFoundError"),
        ("await node.write('f', 'a {b}', c=1)", "start raised ValueError: f cannot be filled in (KeyError: 'b')"),
        ("await node.write('f', 'if { a } {c}', c=1)", "so write {{ and }} for its own braces"),
    ],
)
async def test_a_start_that_goes_wrong_names_what_was_wrong(tmp_path: Path, body: str, words: str) -> None:
    subject, node = await installed(starting(tmp_path, body))
    with pytest.raises(BrokenSystem) as problem:
        await subject.start(node)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("values", ["node=node", "path='x', node=node", "text='t'"])
async def test_a_file_is_filled_in_with_its_node_and_with_any_name(tmp_path: Path, values: str) -> None:
    written: dict[str, bytes] = {}

    async def write(path: str, data: bytes) -> None:
        written[path] = data

    line = f"await node.write('my.conf', 'bind {{node.address}}', {values})"
    subject, node = starting(tmp_path, line), running_node()
    node.address, node.start = "198.18.0.11", node.run
    await subject.install([node], seed=1, bug=None)
    node.write = write
    await subject.start(node)
    assert written["/d/my.conf"] == b"bind 198.18.0.11"


async def test_a_refusal_of_the_node_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    async def full(*_: object) -> None:
        raise OSError("No space left on device")

    subject, node = await installed(load_subject(str(TCP_REGISTER)))
    node.write = full
    with pytest.raises(OSError, match="No space left"):
        await subject.start(node)


async def test_a_dead_server_is_shown_with_what_it_printed_last(tmp_path: Path) -> None:
    async def dead() -> str:
        return "dead"

    async def read(path: str) -> bytes:
        assert path == "/l/server.log"
        return b"starting\n\nport 7000 is in use\n"

    subject, node = await installed(load_subject(str(TCP_REGISTER)))
    node.state, node.read = dead, read
    words = "the server of n1 is dead; its server.log ends: starting | port 7000 is in use"
    assert await subject.ready([node]) == words

    async def of_two(path: str) -> bytes:
        ended = b"gate ended with status 1; the others are killed"
        return {"/l/server.log": ended, "/l/gate.log": b"no licence\n"}[path]

    node.read = of_two
    assert str(await subject.ready([node])).startswith("the server of n1 is dead; its gate.log ends: no licence | gate")

    async def nothing(path: str) -> bytes:
        return b""

    node.read = nothing
    words = "the server of n1 is dead; it printed nothing: a command must keep the server in the foreground"
    assert await subject.ready([node]) == words


def load_subject_with(tmp_path: Path, method: str) -> Subject:
    """The example with one method in the place of its own `caught_up`."""
    path = tmp_path / "mine.py"
    text = TCP_REGISTER.read_text().replace("async def caught_up", "async def not_caught_up")
    path.write_text(text.replace("    async def start(", f"{method}\n\n    async def start("))
    return load_subject(str(path))


@pytest.mark.parametrize("method", ["ready", "caught_up"])
async def test_what_is_missing_must_be_words(tmp_path: Path, method: str) -> None:
    body = f"    async def {method}(self, nodes):\n        return True"
    subject, node = await installed(load_subject_with(tmp_path, body))
    with pytest.raises(BrokenSystem, match=f"mine.py: {method} returned True, where None or what is missing"):
        await (subject.ready([node]) if method == "ready" else subject.caught_up([node], 1))


NAMED = """
from krucible import Client, System

class Mine(System):
    processes = {processes}

    async def start(self, node, nodes):
        return {started}

class MineClient(Client):
    def read(self, key): ...
"""


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ('"agent"', "processes must be a list of names"),
        ("5", "processes must be a list of names"),
        ('["an agent"]', "'an agent' is no name"),
        ('{"db": "("}', "of db is no regular expression"),
    ],
)
def test_named_processes_that_cannot_be_are_refused(tmp_path: Path, processes: str, words: str) -> None:
    (path := tmp_path / "mine.py").write_text(NAMED.format(processes=processes, started="'run'"))
    with pytest.raises(WrongSpec, match=words):
        load_subject(str(path))


async def test_a_named_process_that_start_does_not_return_is_refused_before_the_server_is_started(
    tmp_path: Path,
) -> None:
    named = '{"agent": "", "db": "postgres"}'
    (path := tmp_path / "mine.py").write_text(NAMED.format(processes=named, started="{'other': 'run'}"))
    subject = load_subject(str(path))
    assert subject.processes == {"agent": "", "db": "postgres"}
    node = running_node()
    await subject.install([node], seed=1, bug=None)
    with pytest.raises(BrokenSystem, match=r"start returned the commands of other, and `processes` names agent: ret"):
        await subject.start(node)


def test_the_faults_on_named_processes_are_listed_with_all_other_targets(tmp_path: Path) -> None:
    (path := tmp_path / "mine.py").write_text(NAMED.format(processes='["agent"]', started="{'agent': 'run'}"))
    names = known_names(str(path))
    assert {"partition halves", "kill leader", "kill:agent leader", "pause:agent one"} <= names["targets"].keys()
    assert "stop:agent" in names["nemeses"]
    assert not [name for name in known_names()["targets"] if ":" in name]
    assert {"damage", "membership"} <= known_names()["nemeses"].keys()
    assert not {"damage", "membership"} & names["nemeses"].keys(), "it allows neither"
    etcd = known_names("etcd")
    assert "clock" not in etcd["nemeses"] and "clock leader" not in etcd["targets"] and "damage" in etcd["nemeses"]
    assert etcd["parameters of subjects"]["etcd version"] == "3.7.3 by default"
    assert known_names("canary")["nemeses"].keys() == {"none", "all"}


HANDS_OVER = '''
from pathlib import Path
from krucible import Client, Needs, System

class Mine(System):
    """One that hands over what it has."""
    port = 1
    logs = {"metadata": "kafka/__cluster_metadata-0", "topics": "kafka/*-*"}
    parameters = {"version": "4.4.0", "replicas": 3}
    needs = Needs(files={"libs": "jars"})
    never_fsyncs = True

    async def start(self, node, nodes):
        return "true"

    def trace_of(self, node, logs):
        return [{"seq": 0, "event": "start"}]

class C(Client):
    def read(self, key): ...
    def write(self, key, value): ...
'''


@pytest.fixture
def handing_over(tmp_path: Path) -> Path:
    (tmp_path / "jars" / "deep").mkdir(parents=True)
    (tmp_path / "jars" / "deep" / "a.jar").write_bytes(b"jar")
    (tmp_path / "mine.py").write_text(HANDS_OVER)
    return tmp_path / "mine.py"


def test_parameters_are_set_by_name_and_keep_their_types(handing_over: Path) -> None:
    subject = load_subject(Spec(subject=str(handing_over), set="version=4.0,replicas=5"))
    assert isinstance(subject, Subject)
    assert subject.system.settings == {"version": "4.0", "replicas": 5}
    assert subject.client_config(seed=1, bug=None)["settings"] == {"version": "4.0", "replicas": 5}
    with pytest.raises(WrongSpec, match="--set replicas of mine takes a number such as 3, not 'many'"):
        load_subject(Spec(subject=str(handing_over), set="replicas=many"))
    with pytest.raises(WrongSpec, match=r"unknown parameter .* 'versoin'; did you mean 'version'"):
        check_names(Spec(subject=str(handing_over), set="versoin=4.0"))


def test_what_a_system_hands_over_is_declared(handing_over: Path) -> None:
    declares = load_subject(str(handing_over)).declares
    assert (declares.logs, declares.traces, declares.fsyncs, declares.leaders) == (True, True, False, False)


def test_a_folder_of_files_is_kept_with_the_run(handing_over: Path, tmp_path: Path) -> None:
    load_subject(str(handing_over)).keep(tmp_path / "run")
    assert (tmp_path / "run" / "subject" / "jars" / "deep" / "a.jar").read_bytes() == b"jar"


async def test_a_row_that_is_no_json_blames_the_method_that_returned_it(handing_over: Path, tmp_path: Path) -> None:
    handing_over.write_text(HANDS_OVER.replace('"event": "start"', '"event": b"start"'))
    node = Mock(copy_out=AsyncMock())
    node.name = "n1"
    with pytest.raises(BrokenSystem, match=r"mine\.py: trace_of raised TypeError: .*bytes is not JSON serializable"):
        await load_subject(str(handing_over)).collect(node, tmp_path / "nodes" / "n1")


async def test_only_the_named_logs_are_copied_and_the_files_beside_them(handing_over: Path, tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    for name in ("kafka/__cluster_metadata-0/0.log", "kafka/k0-0/0.log", "kafka/meta.properties", "libs/a.jar"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)

    (data / "kafka" / "__cluster_metadata-0" / "0.log").chmod(0o400)  # it matches two patterns
    powerless = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.getuid() == 0 else []

    async def run(argv: list[str], timeout_s: float) -> Completed:
        done = await asyncio.to_thread(subprocess.run, [*powerless, *argv], capture_output=True, check=False)
        return Completed(done.returncode, done.stdout, done.stderr)

    node = SimpleNamespace(name="n1", data_dir=str(data), trace_dir=str(tmp_path), run=run)
    assert await load_subject(str(handing_over)).copy(node, str(aside)) == 0  # type: ignore[arg-type]
    found = {str(path.relative_to(aside)) for path in aside.rglob("*") if path.is_file()}
    assert found == {"kafka/__cluster_metadata-0/0.log", "kafka/k0-0/0.log", "kafka/meta.properties"}
