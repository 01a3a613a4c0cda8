"""The local page: what it shows, what it refuses, and how it looks in a real browser."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from facts_of_runs import facts, violation, with_rows
from own_cache import use_own_cache
from recorded_runs import unpacked
from starlette.requests import Request
from waiting import PATIENCE_S

from harness.backends.leftovers import KeptCluster, current_owner, note
from harness.lake.facts import RunFacts
from harness.lake.lake import Lake
from harness.lake.tables import RUNS, VIOLATIONS
from harness.live import LiveFile, RunStatus, read_live
from harness.serve import app
from harness.serve.app import Source

CHROMIUM = shutil.which("chromium")
NASTY = "</script><img src=x onerror=alert(1)>\"'& <b>"
BUG = "stale-read"


@dataclass
class Server:
    """A page that a process of its own serves."""

    url: str
    results: Path
    process: subprocess.Popen[str]

    def get(self, path: str, **headers: str) -> HTTPResponse:
        """Raises HTTPError for a refusal."""
        return urllib.request.urlopen(
            urllib.request.Request(self.url + path.lstrip("/"), headers=headers), timeout=PATIENCE_S
        )

    def refusal(self, path: str, **headers: str) -> int:
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.get(path, **headers)
        return refused.value.code


def serving(results: Path, *words: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "harness", "serve", "--results", str(results), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("runs: "))
            yield Server(line.split()[1].partition("?")[0], results, process)
        finally:
            process.terminate()


def run_with(number: int, violations: list[dict[str, Any]], **columns: Any) -> RunFacts:
    one = facts(number, **columns)
    rows = with_rows(one.run, one.rows[RUNS]["started"][0].as_py(), one.system, {VIOLATIONS: violations}).rows
    return RunFacts(one.run, one.date, one.system, {**rows, RUNS: one.rows[RUNS]})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with folders, one of them with a report; one whose names are hostile; one that lies outside."""
    results = tmp_path_factory.mktemp("results")
    lake = Lake(results / "lake")
    for name in ("kraft-stale-read", "kraft-partition"):
        lake.add(unpacked(name, results / "recorded" / name))
    (results / "recorded" / "kraft-stale-read" / "report.html").write_text("<p>a report</p><script>1</script>")
    (results / "recorded" / "kraft-stale-read" / "leads-out").symlink_to("/etc/passwd")
    nasty = violation(summary=NASTY, kind=NASTY, words=NASTY)
    lake.append(
        run_with(
            1, [nasty], summary=NASTY, test=NASTY, bug=NASTY, bug_found=True, verdict="invalid", symptom="6b96ad0f"
        )
    )
    outside = results.parent / f"{results.name}-outside"
    (outside / "run").mkdir(parents=True)
    (outside / "run" / "test.json").write_text("{}")
    (outside / "run" / "report.html").write_text("secret")
    lake.append(facts(2, path=f"../{outside.name}/run"))
    (results / "link").symlink_to(outside)
    lake.append(facts(3, path="link/run"))
    return results


@pytest.fixture(scope="module")
def server(results: Path) -> Iterator[Server]:
    yield from serving(results)


def name_of(results: Path, **columns: Any) -> str:
    rows = Lake(results / "lake").read(RUNS).to_pylist()
    [run] = [row["run"] for row in rows if all(row[name] == value for name, value in columns.items())]
    return str(run)


def test_the_list_shows_every_run_and_filters(server: Server) -> None:
    every = server.get("/").read().decode()
    assert every.count('type="checkbox"') == 5
    assert 'href="/style.css"' in every and every.count('class="verdict expected"') == 1, "a bug that was found"
    assert server.get("/style.css").headers["Content-Type"].startswith("text/css")
    assert server.get("/?bug=stale-read").read().decode().count('type="checkbox"') == 1
    assert server.get("/?since=2026-01-02").read().decode().count('type="checkbox"') == 2
    assert "No run is like this" in server.get("/?system=nothing").read().decode()
    assert server.refusal("/?since=yesterday") == 400


def test_the_list_is_searched_grouped_and_ordered(server: Server, results: Path) -> None:
    assert server.get("/?q=STALE-READ").read().decode().count('type="checkbox"') == 1
    assert "No run is like this" in server.get("/?q=no-such-words").read().decode()
    assert server.get("/?group=test").read().decode().count("<h2>") > 1
    by_symptom = server.get("/?group=symptom").read().decode()
    assert not re.search(r"<h2>[0-9a-f]{8} ", by_symptom), "a symptom is named in words"
    oldest = server.get("/?sort=old").read().decode()
    newest = server.get("/").read().decode()
    names = [f"/{name_of(results, seed=seed)}" for seed in (2, 3)]
    assert [oldest.index(name) for name in names] == sorted(oldest.index(name) for name in names)
    assert [newest.index(name) for name in names] == sorted((newest.index(name) for name in names), reverse=True)


def test_many_runs_are_shown_page_by_page(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "RUNS_SHOWN", 2)
    page = app._Page([Source("results", Lake(results / "lake"))])

    def shown(query: str) -> str:
        request = Request({"type": "http", "query_string": query.encode(), "headers": []})
        return bytes(asyncio.run(page.runs(request)).body).decode()

    first = shown("system=kraft")
    assert first.count('type="checkbox"') == 2 and "page 1 of 3" in first
    assert 'href="/?system=kraft&amp;page=2"' in first
    assert shown("page=3").count('type="checkbox"') == shown("page=99").count('type="checkbox"') == 1


def test_everything_is_escaped_and_nothing_comes_from_elsewhere(server: Server, results: Path) -> None:
    run = name_of(results, seed=1, bug=NASTY)
    for path in ("/", f"/run/results/{run}", f"/compare?run=results/{run}&run=results/{run}"):
        answer = server.get(path)
        page = answer.read().decode()
        assert "<img" not in page and "<b>" not in page
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "&lt;/script&gt;&lt;img" in page or "&lt;img" in server.get("/").read().decode()


def test_a_run_whose_cluster_is_up_is_marked_and_the_command_that_ends_it_stands_beside(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_own_cache(monkeypatch, tmp_path / "cache")
    up, ended = (results / "recorded" / name for name in ("kraft-stale-read", "kraft-partition"))
    pid, _, *rest = current_owner().split(":")
    for folder, owner in ((up, current_owner()), (ended, ":".join((pid, "another start", *rest)))):
        note(KeptCluster(folder.name, str(folder), "a test", "docker", "invalid", owner, "2026-01-01T00:00:00+00:00"))
    release = f" release {up}</code>"
    for server in serving(results):
        page = server.get("/").read().decode()
        assert page.count('class="kept"') == 1
        [row] = [row for row in page.split("<tr>") if 'class="kept"' in row]
        assert release in row and name_of(results, bug=BUG) in row
        assert release in server.get(f"/run/results/{name_of(results, bug=BUG)}").read().decode()
        ended_run = name_of(results, bug=None, path="recorded/kraft-partition")
        assert " release " not in server.get(f"/run/results/{ended_run}").read().decode()


def test_a_report_is_shown_in_a_sandbox(server: Server, results: Path) -> None:
    answer = server.get(f"/report/results/{name_of(results, bug=BUG)}")
    assert b"a report" in answer.read()
    assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
    assert server.refusal(f"/report/results/{name_of(results, path='recorded/kraft-partition')}") == 404


def test_links_lead_to_runs_of_a_folder_whose_name_has_slashes(results: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    Lake(own / "lake").append(facts(1))
    for server in serving(own, str(results)):
        source = urllib.parse.quote(f"1: {results}", "")
        run = name_of(results, bug=BUG)
        assert f'href="/run/{source}/{run}"' in server.get("/").read().decode()
        for what in ("run", "report", "zip"):
            assert server.get(f"/{what}/{source}/{run}").status == 200
        assert server.refusal(f"/run/{source}/no-such-run") == 404


@pytest.mark.parametrize("seed", [2, 3])
def test_a_run_outside_of_the_folder_is_not_served(server: Server, results: Path, seed: int) -> None:
    run = f"20260101T000{seed}00Z-{seed}"
    assert b"is not on this machine" in server.get(f"/run/results/{run}").read()
    assert server.refusal(f"/report/results/{run}") == server.refusal(f"/zip/results/{run}") == 404


def test_nothing_but_runs_is_read_and_nothing_is_written(server: Server) -> None:
    outside = ("/report/results/..%2F..%2Fetc%2Fpasswd", "/static/..%2Fapp.py", "/static/../app.py")
    for path in (*outside, "/zip/results/recorded", "/run/nowhere/x", "/styles/base.css", "/nothing"):
        assert server.refusal(path) == 404
    assert server.refusal("/", Host="evil.example") == 400
    for path in ("/", "/compare", "/live"):
        asked = urllib.request.Request(server.url.rstrip("/") + path, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=PATIENCE_S)
        assert refused.value.code == 405


def test_a_run_is_zipped_without_its_links(server: Server, results: Path) -> None:
    content = server.get(f"/zip/results/{name_of(results, bug=BUG)}").read()
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert "kraft-stale-read/history.parquet" in names or "kraft-stale-read/history.arrows" in names
    assert "kraft-stale-read/leads-out" not in names


def test_two_runs_are_compared(server: Server, results: Path) -> None:
    a, b = name_of(results, bug=BUG), name_of(results, bug=None, path="recorded/kraft-partition")
    page = server.get(f"/compare?run=results/{a}&run=results/{b}").read().decode()
    assert "First different operation" in page and 'id="parted"' in page and "stale-read" in page
    assert server.refusal(f"/compare?run=results/{a}") == 400
    assert server.refusal("/compare?a=results/x&b=results/y") == 404


def test_a_running_test_is_seen_until_it_has_ended(server: Server, results: Path) -> None:
    live = LiveFile(results, "one")
    live.show(RunStatus("test-kill: kraft", "", "main", 3.0, 99.0, faults=("n1 killed",), pid=os.getpid()))
    try:
        first = server.get("/live/events").readline().decode()
        [status] = json.loads(first.removeprefix("data: "))
        assert (status["phase"], status["rate_hz"], status["faults"]) == ("main", 99.0, ["n1 killed"])
    finally:
        live.remove()
    assert read_live(results) == []
    dead = subprocess.Popen(["true"])
    dead.wait()
    LiveFile(results, "two").show(RunStatus("of a killed harness", "", "main", pid=dead.pid))
    assert read_live(results) == []


def test_another_address_than_loopback_wants_a_token(results: Path) -> None:
    for server in serving(results, "--host", "0.0.0.0", "--token", "a-token"):
        assert server.refusal("/") == server.refusal("/?token=wrong") == server.refusal("/zip/results/x") == 401
        assert server.refusal("/", Cookie="krucible=wrong") == 401
        assert server.get("/", Cookie="krucible=a-token").status == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        answer = opener.open(f"{server.url}?verdict=invalid&token=a-token", timeout=PATIENCE_S)
        assert answer.status == 200 and "token" not in answer.url and "verdict=invalid" in answer.url


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_reader_filters_compares_and_watches(server: Server, results: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": 390, "height": 800})
            page.set_default_timeout(PATIENCE_S * 1000)
            complaints: list[str] = []
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda problem: complaints.append(str(problem)))
            page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
            page.goto(server.url)
            assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
            page.get_by_label("System").select_option("kraft")
            page.get_by_role("button", name="Filter").click()
            for run in (name_of(results, bug=BUG), name_of(results, bug=None, path="recorded/kraft-partition")):
                page.get_by_label(f"Choose {run}").check()
            page.get_by_role("button", name="Compare the two chosen").click()
            assert page.locator("#parted").is_visible()
            page.get_by_role("link", name="A: recorded/kraft-", exact=False).click()
            with page.expect_download() as download:
                page.get_by_role("link", name="Download the run").click()
            assert download.value.suggested_filename.endswith(".zip")
            page.get_by_role("link", name="Live").click()
            live = LiveFile(results, "seen")
            live.show(RunStatus("test-kill: kraft", "", "recovery", 3.0, leader="n2", epoch=7, pid=os.getpid()))
            try:
                page.get_by_text("n2 in epoch 7").wait_for()
            finally:
                live.remove()
            page.get_by_text("Nothing runs now.").wait_for()
            assert complaints == []
        finally:
            browser.close()


def test_the_server_ends_when_told_even_while_somebody_watches(results: Path) -> None:
    for server in serving(results):
        watching = server.get("/live/events")
        assert watching.readline()
        server.process.terminate()
        until = time.monotonic() + PATIENCE_S
        while server.process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert server.process.poll() is not None
