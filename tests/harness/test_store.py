"""Runs on an object store, with a real S3 server on this machine (moto's)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from command_line import NO_SPARK, krucible
from moto import server as moto
from own_cache import use_own_cache
from recorded_runs import unpacked
from spark_cluster import Cluster, can_hide_folders

from checkers.spark.session import START_VARIABLE
from checkers.spark.shipping import digest_of
from harness.judge.judge_run import judge
from harness.lake.past import Filter, runs
from harness.store import MADE_ANEW, Mirror, RunShelf, Store, StoreUnavailable, is_store, parted

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
# Otherwise the client tries to reach Amazon's instance metadata service.
CREDENTIALS["AWS_EC2_METADATA_DISABLED"] = "true"
TEST = "test-partition"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server with one bucket, `nights`."""
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
            patch.setenv(name, value)
        Store.at("s3://nights?allow_bucket_creation=true").files.create_dir("nights")
        yield f"http://{host}:{port}"
    found.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = unpacked("kraft-stale-read", tmp_path_factory.mktemp("results") / TEST / "a-run")
    judge(root, None, lambda _: None, report=False)
    return root


@pytest.fixture
def store(server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A prefix of this test's own, and an empty cache."""
    use_own_cache(monkeypatch, tmp_path / "cache")
    return Store.at(f"s3://nights/{hash(request.node.name):x}")


def content(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in MADE_ANEW
    }


def test_a_run_comes_back_as_it_was_and_its_manifest_is_written_last(
    store: Store, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    put = Store._put

    def noted(self: Store, path: Path, name: str) -> None:
        written.append(path.name)
        put(self, path, name)

    monkeypatch.setattr(Store, "_put", noted)
    address = store.upload(run)
    assert written[-1] == "manifest.json" and len(written) == len(content(run))
    assert address == f"{store.address}/runs/{TEST}/a-run"
    mirror = store.mirror()
    fetched = mirror.fetch(f"runs/{TEST}/a-run")
    assert content(fetched) == content(run) and not (fetched / "buckets").exists()
    [row] = runs(mirror.refresh(), Filter(verdict="invalid"))
    assert (row["path"], row["bug"]) == (f"runs/{TEST}/a-run", "stale-read")


def test_an_upload_that_was_broken_off_is_no_run_and_one_that_left_the_store_leaves_the_list(
    store: Store, run: Path
) -> None:
    store.upload(run)
    mirror = store.mirror()
    assert len(runs(mirror.refresh(), Filter())) == 1
    store.files.delete_dir_contents(f"{store.prefix}/lake")
    assert runs(mirror.refresh(), Filter()) == []
    store.files.delete_file(f"{store.prefix}/runs/{TEST}/a-run/manifest.json")
    with pytest.raises(LookupError, match=r"has no complete run .*: its manifest is missing"):
        store.mirror().fetch(f"runs/{TEST}/a-run")


def test_what_was_fetched_is_not_fetched_again_and_what_changed_is(
    store: Store, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(run, tmp_path / TEST / "a-run")
    store.upload(copied)
    mirror = store.mirror()
    mirror.refresh()
    mirror.fetch(f"runs/{TEST}/a-run")
    fetched: list[str] = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, info, into: (fetched.append(into.name), get(self, info, into))[1])
    mirror.refresh()
    mirror.fetch(f"runs/{TEST}/a-run")
    assert fetched == []
    (copied / "results.json").write_text(json.dumps({"verdict": "unknown", "exit_code": 2, "checkers": {}}))
    store.upload(copied, only=("results.json",))
    root = mirror.fetch(f"runs/{TEST}/a-run")
    assert "results.json" in fetched and "history.parquet" not in fetched
    assert json.loads((root / "results.json").read_text())["verdict"] == "unknown"
    [row] = runs(mirror.refresh(), Filter())
    assert row["verdict"] == "unknown"


def test_a_name_that_is_no_runs_or_leads_out_of_the_mirror_is_refused(store: Store, run: Path) -> None:
    for name in ("runs/../x/y", "runs/a", "lake/runs/x", "runs/a/b/c", ""):
        with pytest.raises(LookupError, match="names no run of"):
            store.mirror().fetch(name)
    for name in ("../x", "runs/../../x", "/etc/x"):
        with pytest.raises(StoreUnavailable, match="leads out of its folder"):
            Mirror(store, run)._inside(PurePosixPath(name))


@pytest.mark.usefixtures("server")
def test_a_store_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        Store.at("s3://no-such-bucket-here/x").check()
    assert "\n" not in str(refused.value)


def test_an_address_of_a_run_names_its_store() -> None:
    assert parted("s3://b/p/runs/t/r") == ("s3://b/p", "runs/t/r")
    assert parted("s3://b/p/runs/t/r?scheme=http") == ("s3://b/p?scheme=http", "runs/t/r")
    assert is_store("s3://b") and not is_store("results/runs/t/r")
    with pytest.raises(LookupError):
        parted("s3://b/p")


def test_workers_read_files_of_a_run_where_they_are_and_what_judging_made_aside(
    store: Store, run: Path, tmp_path: Path
) -> None:
    store.upload(run)
    root = store.mirror().fetch(f"runs/{TEST}/{run.name}")
    made = root / "buckets" / "0.parquet"
    made.parent.mkdir()
    made.write_bytes(b"made anew")
    shelf = RunShelf(store, root)
    for path, beside in ((root / "history.parquet", False), (made, True)):
        mark = digest_of(str(path))
        assert mark is not None
        there = shelf.put(str(path), mark)
        there.copy_to(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == path.read_bytes()
        assert ("_judging" in there.path) is beside
    assert len(store.list("_judging")) == 1
    shelf.clear()
    assert store.list("_judging") == [] and store.list(f"runs/{TEST}/{run.name}")


@pytest.mark.spark
@pytest.mark.skipif(not can_hide_folders(), reason="needs the right to make namespaces of mounts")
@pytest.mark.parametrize(
    "reached", [pytest.param(True, id="reached"), pytest.param(False, id="not-reached", marks=pytest.mark.nightly)]
)
def test_nodes_of_a_cluster_that_share_no_disk_read_the_run_from_the_store_or_get_the_bytes(
    reached: bool, store: Store, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(START_VARIABLE, "1000")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    address = store.upload(run)
    root = store.mirror().fetch(f"runs/{TEST}/{run.name}")
    elsewhere = {} if reached else {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with Cluster(tmp_path / "cluster", workers=0, **elsewhere) as cluster:
        cluster.add_worker(hidden=root)
        words = [sys.executable, "-m", "harness", "analyze", address, "--spark-master", cluster.master, "--json"]
        found = subprocess.run(words, capture_output=True, text=True, check=False)  # a process can have one Spark
    assert found.returncode == 1, found.stdout + found.stderr
    judged_by = json.loads((root / "results.json").read_text())["judged_by"]
    assert (f"MB of files from {store.address}" in judged_by) is reached
    assert ("because nodes cannot read the run folder or its store (" in judged_by) is not reached
    assert store.list("_judging") == []


def test_a_run_is_uploaded_when_it_ends_listed_and_judged_there(store: Store, tmp_path: Path) -> None:
    canary = ("run", "--subject", "canary", "--nemesis", "none", "--time-limit", "2", "--rate", "300", "--bug", "stale")
    where = ("--results", str(tmp_path / "results"), "--store", store.address)
    ran = krucible(*canary, *NO_SPARK, "--seed", "1", *where)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    address = next(line.split()[1] for line in ran.stdout.splitlines() if line.startswith("stored: "))
    listed = krucible("runs", "--store", store.address, "--json")
    [row] = map(json.loads, listed.stdout.splitlines())
    assert (row["verdict"], row["bug"]) == ("invalid", "stale") and address.endswith(row["path"])
    again = krucible("analyze", address, "--in-process")
    assert again.returncode == 1 and f"stored: {address}" in again.stdout, again.stdout + again.stderr
    assert krucible("analyze", f"{store.address}/runs/none/here").returncode == 3


def test_a_store_that_refuses_is_known_before_the_run(server: str, tmp_path: Path) -> None:
    ran = krucible(
        "run", "--subject", "canary", "--nemesis", "none", "--results", str(tmp_path), "--store", "nonsense://x"
    )
    assert ran.returncode == 3 and "nonsense://x is no store" in ran.stderr
    assert not list(tmp_path.glob("*/*"))
