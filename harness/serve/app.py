"""The page's routes, served on a socket until the process ends.  All requests are GET, and none is stored.

    /                       list of runs: filters, a sparkline for each row, two runs to compare
    /live, /live/events     running tests, once a second as server-sent events
    /run/SOURCE/RUN         one run: spec, measurements, violations, faults
    /report/…, /zip/…       report of a run, and folder of a run as a zip file
    /compare?a=…&b=…        two runs side by side

A page may load scripts and styles only from this server (Content-Security-Policy).  A report is a file of unknown
origin, so it is shown in a sandbox, where its scripts cannot send requests to this server.  The Host header must
contain one of the server's names.  Otherwise a foreign page could read this page through a name of its own that
resolves to this server.  On an address other than loopback the server requires a token: first in the address, then in a
cookie.

*Sources.*  Runs come from one or several lakes.  Names in a request are looked up in the lake, and never joined to a
path.  The folder of a run must be inside the lake's parent folder, without a link that leads out of it, and must
contain a run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import socket
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import URL, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from checkers.record.run_record import TEST
from harness.backends.leftovers import KeptCluster, kept_clusters
from harness.lake.compare import Comparison, Rows, compare, find
from harness.lake.lake import Lake
from harness.lake.past import Filter, moment, runs
from harness.lake.tables import CRITERIA, FAULTS, RUNS, VIOLATIONS
from harness.live import read_live
from harness.plain_words import opening, shorten, upper_first
from harness.report.environment import TEMPLATES as REPORT_TEMPLATES
from harness.report.environment import environment
from harness.started import program
from harness.store import Mirror, StoreUnavailable

SPARK_RUNS = 24
"""Number of runs of the same test in the sparkline of a row."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source of runs for the page.

    name: unique name on the page
    lake: lake of the runs
    mirror: mirror of the store, if the runs are in a store"""

    name: str
    lake: Lake
    mirror: Mirror | None = None

    @property
    def base(self) -> Path:
        return self.lake.folder.parent

    def folder_of(self, run: Mapping[str, Any]) -> Path | None:
        """Return the folder of a run; None if it is not on this machine, or not inside the lake's parent folder."""
        base = self.base.resolve()
        if self.mirror is not None:
            try:
                self.mirror.fetch(str(run["path"]))
            except LookupError:
                return None
        folder = (base / str(run["path"])).resolve()
        return folder if folder.is_relative_to(base) and (folder / TEST).is_file() else None

    def refresh(self) -> None:
        """Fetch the lake of the store again, if this source is a store.  Raises StoreUnavailable."""
        if self.mirror is not None:
            self.mirror.refresh()

    def run(self, name: str) -> dict[str, Any] | None:
        """Return the row of the run with exactly this name; None if there is none."""
        rows = self.lake.read(RUNS, run=name).to_pylist()
        return rows[0] if rows else None

    def facts(self, run: Mapping[str, Any]) -> Rows:
        return find(self.lake, str(run["run"]))[0]


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A row of the list.

    spark: verdicts of the runs of the same test, oldest first, up to this run
    release: command that ends the run's cluster, if the cluster was kept and is up; else ""
    test: name of the test
    age: time since the run started, such as "3 h"
    """

    source: str
    run: Mapping[str, Any]
    spark: Sequence[str]
    release: str
    test: str
    age: str

    @property
    def headline(self) -> str:
        """Return the first sentence of the run's summary, without the verdict, which has its own column."""
        words, _ = opening(str(self.run["summary"] or "").partition(" Planted bug ")[0])
        for verdict in ("Invalid: ", "Unknown: ", "Valid: "):
            words = words.removeprefix(verdict)
        return upper_first(shorten(words, 200)) or str(self.run["run"])


def is_expected(run: Mapping[str, Any]) -> bool:
    """Return True for a run that found its planted bug, whose violation was expected."""
    return run["bug_found"] is True


def shape_of(run: Mapping[str, Any]) -> str:
    """Return the name of the symbol for the run's verdict."""
    return str(run["verdict"]) if run["verdict"] in ("valid", "invalid") else "unknown"


_ORDERS: Mapping[str, Callable[[ListedRun], Any]] = {
    "old": lambda one: str(one.run["started"]),
    "verdict": lambda one: one.run["verdict"] != "invalid" or is_expected(one.run),
    "long": lambda one: -(one.run["duration_s"] or 0),
}
"""Name of an order, as a form sends it -> sort key.  Any other name means newest first."""


def grouped(rows: Sequence[ListedRun], by: str) -> list[tuple[str, list[ListedRun]]]:
    """Return groups of rows, as (name, rows), in the order of their first rows.  The name of a symptom's group is the
    headline of the first row.

    by: "test" or "symptom"; any other text makes one group without a name"""
    groups: dict[str, list[ListedRun]] = {}
    for row in rows:
        name = row.test if by == "test" else str(row.run["symptom"] or "no violation") if by == "symptom" else ""
        groups.setdefault(name, []).append(row)
    if by == "symptom":
        return [(mine[0].headline if mine[0].run["symptom"] else name, mine) for name, mine in groups.items()]
    return list(groups.items())


def listed(sources: Sequence[Source], wanted: Filter, text: str = "", order: str = "") -> list[ListedRun]:
    """Return the runs of all sources that pass the filter and contain a text.

    order: key of _ORDERS; any other text means newest first"""
    found = []
    kept = {one.folder: one for one in kept_clusters() if one.alive}
    for source in sources:
        source.refresh()
        every = runs(source.lake, Filter())
        history: dict[tuple[Any, ...], list[str]] = {}
        spark_of: dict[str, tuple[str, ...]] = {}
        for run in reversed(every):
            verdicts = history.setdefault(_test(run), [])
            verdicts.append(str(run["verdict"]))
            spark_of[run["run"]] = tuple(verdicts[-SPARK_RUNS:])
        for run in runs(source.lake, wanted):
            release = release_command(source, run, kept)
            found.append(ListedRun(source.name, run, spark_of[run["run"]], release, words_of_test(run), age_of(run)))
    found = [one for one in found if text.lower() in _searched(one)]
    found.sort(key=lambda one: str(one.run["started"]), reverse=True)
    return sorted(found, key=_ORDERS[order]) if order in _ORDERS else found


def _searched(one: ListedRun) -> str:
    columns = ("run", "path", "summary", "seed", "bug", "symptom", "revision")
    return " ".join([*(str(one.run[name]) for name in columns if one.run[name] is not None), one.test]).lower()


def words_of_test(run: Mapping[str, Any]) -> str:
    """Return the test of a run in words, such as `partition on kraft, register, docker`."""
    kinds = ", ".join(run["kinds"] or ()) or "no faults"
    return f"{kinds} on {run['system']}, {run['workload']}, {run['backend']}"


def age_of(run: Mapping[str, Any]) -> str:
    """Return the time since a run started, in the largest unit that fits; "" if the start is unknown."""
    if run["started"] is None:
        return ""
    past_s = max(0.0, (datetime.now(UTC) - run["started"]).total_seconds())
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if past_s >= length_s:
            return f"{past_s / length_s:,.0f} {unit}"
    return f"{past_s:.0f} s"


def release_command(source: Source, run: Mapping[str, Any], kept: Mapping[str, KeptCluster] | None = None) -> str:
    """Return the command that ends the cluster of a run; "" unless the cluster was kept and is up.

    kept: folder of a run -> cluster, for all clusters that are up; None reads them again
    """
    if kept is None:
        kept = {one.folder: one for one in kept_clusters() if one.alive}
    if source.mirror is not None or not kept:
        return ""
    folder = str((source.base / str(run["path"])).resolve())
    return f"{program()} release {shlex.quote(folder)}" if folder in kept else ""


def _test(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values by which runs of the same test are grouped, which are equal if only seeds differ."""
    return run["system"], run["workload"], tuple(run["kinds"] or ()), run["bug"], run["backend"], run["nodes"]


def choices(sources: Sequence[Source]) -> dict[str, list[str]]:
    """Return column -> values by which a reader can filter."""
    every = [run for source in sources for run in runs(source.lake, Filter())]
    columns = ("system", "workload", "bug", "verdict", "symptom")
    found = {column: sorted({str(run[column]) for run in every if run[column]}) for column in columns}
    return found | {"kind": sorted({kind for run in every for kind in run["kinds"] or ()})}


HERE = Path(__file__).parent
COOKIE = "krucible"
RUNS_SHOWN = 50
"""Maximum number of runs on one page of the list."""
EVERY_S = 1.0
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def app_of(sources: Sequence[Source], hosts: Sequence[str] = LOOPBACK, token: str | None = None) -> Starlette:
    """Return the application that serves the page.

    hosts: names of this server that the Host header may contain
    token: secret that a reader must present, or None
    """
    page = _Page(sources)
    routes = [
        Route("/", page.runs),
        Route("/live", page.live),
        Route("/live/events", page.live_events),
        Route("/run/{source:path}/{run}", page.run),
        Route("/report/{source:path}/{run}", page.report),
        Route("/zip/{source:path}/{run}", page.zip),
        Route("/compare", page.compare),
        Route("/style.css", _style),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(_Headers)]
    if token is not None:
        middleware.append(Middleware(_Token, token=token))
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: _refused, StoreUnavailable: _refused},
    )


class _Headers:
    """Middleware that adds headers to every answer.  An existing Content-Security-Policy is not changed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", POLICY)
                headers.update({"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"})
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _Token:
    """Middleware that admits only readers with the token.  It moves the token from the address to a cookie that scripts
    cannot read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if self._is_right(request.query_params.get("token", "")):
            answer: Any = RedirectResponse(_without_token(request.url))
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        elif self._is_right(request.cookies.get(COOKIE, "")):
            answer = self._app
        else:
            answer = PlainTextResponse("This page needs the token that `krucible serve` printed: …/?token=TOKEN\n", 401)
        await answer(scope, receive, send)

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


def _without_token(url: URL) -> str:
    rest = url.remove_query_params("token")
    return f"{rest.path}?{rest.query}" if rest.query else str(rest.path)


async def _style(_: Request) -> Response:
    return FileResponse(REPORT_TEMPLATES / "styles" / "base.css", media_type="text/css")


async def _refused(_: Request, problem: Exception) -> Response:
    refusal = problem if isinstance(problem, HTTPException) else HTTPException(503, str(problem))
    return HTMLResponse(_template("refused.html.j2").render(words=refusal.detail), refusal.status_code)


class _Page:
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = {source.name: source for source in sources}

    async def runs(self, request: Request) -> Response:
        given = request.query_params
        wanted = _filter(given)
        sources = list(self._sources.values())
        found = await asyncio.to_thread(listed, sources, wanted, given.get("q", ""), given.get("sort", ""))
        offered = await asyncio.to_thread(choices, sources)
        pages = max(1, -(-len(found) // RUNS_SHOWN))
        page = min(max(1, int(asked) if (asked := given.get("page", "")).isdecimal() else 1), pages)
        rows = found[(page - 1) * RUNS_SHOWN : page * RUNS_SHOWN]
        query = {name: value for name, value in given.items() if value and name != "page"}
        html = _template("runs.html.j2").render(
            groups=grouped(rows, given.get("group", "")), offered=offered, given=given, count=len(found), page=page,
            pages=pages, several=len(sources) > 1, program=program(),
            address=lambda n: "/?" + urlencode({**query, "page": n}),
        )  # fmt: skip
        return HTMLResponse(html)

    async def run(self, request: Request) -> Response:
        source, run = await self._found(request)
        rows = {
            name: source.lake.read(name, run=str(run["run"])).to_pylist() for name in (VIOLATIONS, FAULTS, CRITERIA)
        }
        violations = sorted(rows[VIOLATIONS], key=lambda row: row["place"])
        folder = source.folder_of(run)
        html = _template("run.html.j2").render(
            source=source.name, run=run,
            release=release_command(source, run), violations=violations,
            faults=rows[FAULTS], criteria=rows[CRITERIA],
            has_folder=folder is not None, has_report=folder is not None and (folder / "report.html").is_file(),
        )  # fmt: skip
        return HTMLResponse(html)

    async def report(self, request: Request) -> Response:
        folder = await self._folder(request)
        report = folder / "report.html"
        if not report.is_file() or report.is_symlink():
            raise HTTPException(404, f"This run has no report: `{program()} analyze` makes one.")
        return FileResponse(report, headers={"Content-Security-Policy": REPORT_POLICY}, media_type="text/html")

    async def zip(self, request: Request) -> Response:
        folder = await self._folder(request)
        path = await asyncio.to_thread(zipped, folder)
        return FileResponse(
            path, filename=f"{folder.name}.zip", media_type="application/zip", background=BackgroundTask(path.unlink)
        )

    async def compare(self, request: Request) -> Response:
        pair = request.query_params.getlist("run") or [request.query_params.get(name, "") for name in ("a", "b")]
        if len(pair) != 2:
            raise HTTPException(400, f"Choose two runs to compare them; {len(pair)} are chosen.")
        found = [await self._named(*each.rpartition("/")[::2]) for each in pair]
        (one, a), (other, b) = found
        compared = await asyncio.to_thread(compare, one.facts(a), other.facts(b), one.folder_of(a), other.folder_of(b))
        links = [f"/run/{quote(source.name, '')}/{quote(str(run['run']), '')}" for source, run in found]
        return HTMLResponse(
            _template("compare.html.j2").render(
                compared=compared, links=links, **_on_one_axis(compared, [one.facts(a), other.facts(b)])
            )
        )

    async def live(self, _: Request) -> Response:
        return HTMLResponse(_template("live.html.j2").render())

    async def live_events(self, request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            while not await request.is_disconnected():
                going = [one for source in self._sources.values() for one in read_live(source.base)]
                yield f"data: {json.dumps([asdict(one) for one in going])}\n\n"
                await asyncio.sleep(EVERY_S)

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _found(self, request: Request) -> tuple[Source, dict[str, Any]]:
        return await self._named(request.path_params["source"], request.path_params["run"])

    async def _named(self, source: str, run: str) -> tuple[Source, dict[str, Any]]:
        if source not in self._sources:
            raise HTTPException(404, "There is no such store.")
        found = await asyncio.to_thread(self._sources[source].run, run)
        if found is None:
            raise HTTPException(404, "There is no such run in this store.")
        return self._sources[source], found

    async def _folder(self, request: Request) -> Path:
        source, run = await self._found(request)
        folder = await asyncio.to_thread(source.folder_of, run)
        if folder is None:
            raise HTTPException(404, "The folder of this run is not on this machine: the lake has only its facts.")
        return folder


def _on_one_axis(compared: Comparison, facts: Sequence[Rows]) -> dict[str, Any]:
    """Return the faults and events of two runs as x coordinates on one time axis, from 20 to 1000."""
    spans = [
        [(f["injected_ns"], max(f["healed_ns"], f["injected_ns"]), f["kind"]) for f in rows[FAULTS]] for rows in facts
    ]
    spans = [[span for span in mine if span[0] >= 0] for mine in spans]
    events = [[pair[side] for pair in compared.timelines if pair[side] is not None] for side in (0, 1)]
    ends = [end for mine in spans for _, end, _ in mine] + [e.time_ns for mine in events for e in mine if e is not None]
    last = max([1, *ends])

    def x(at_ns: int) -> float:
        return float(round(20 + 980 * at_ns / last, 1))

    lanes = [
        {
            "faults": [(x(start), max(2.0, round(x(end) - x(start), 1)), kind) for start, end, kind in mine],
            "events": [(x(e.time_ns), e.words) for e in seen if e is not None],
        }
        for mine, seen in zip(spans, events, strict=True)
    ]
    parted = () if compared.parted is None else compared.timelines[compared.parted]
    first = min((event.time_ns for event in parted if event is not None), default=None)
    return {"lanes": lanes, "end_s": last / 1e9, "parted_x": None if first is None else x(first)}


def _filter(given: Mapping[str, str]) -> Filter:
    """Return the filter that a request describes.  Raises HTTPException for an invalid time."""

    def time(name: str) -> datetime | None:
        try:
            return moment(given[name]) if given.get(name) else None
        except ValueError:
            raise HTTPException(400, f"{name} is no date or time, such as 2026-11-25.") from None

    names = ("system", "workload", "kind", "bug", "verdict", "symptom", "revision", "backend")
    wanted: dict[str, Any] = {name: given.get(name, "") for name in names}
    return replace(Filter(**wanted), since=time("since"), until=time("until"))


def zipped(folder: Path) -> Path:
    """Write the folder of a run, without links, to a temporary zip file, and return the file's path.  The caller must
    remove the file."""
    with tempfile.NamedTemporaryFile(prefix="krucible-", suffix=".zip", delete=False) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink() and path.resolve().is_relative_to(folder):
                    archive.write(path, Path(folder.name) / path.relative_to(folder))
        return Path(file.name)


@cache
def _environment() -> jinja2.Environment:
    found = environment(HERE / "templates")
    found.filters |= {
        "part": lambda text: quote(str(text), ""),
        "plain": _plain,
        "query": urlencode,
        "opening": lambda text: opening(text or ""),
    }
    found.filters |= {"shape": shape_of, "expected": is_expected}
    return found


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "–" if value is None else str(value)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.  Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def serve_until_stopped(sources: Sequence[Source], at: socket.socket, names: Sequence[str], token: str | None) -> None:
    """Serve the page until the process is interrupted.

    at: listening socket
    names: names of this server in addition to loopback; with a token any name is allowed"""
    hosts = ["*"] if token is not None else [*LOOPBACK, *names]
    config = uvicorn.Config(
        app_of(sources, hosts, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    uvicorn.Server(config).run(sockets=[at])
