"""`serve`: the local page over many runs."""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.parameters import results_in
from harness.spec import WrongSpec

if TYPE_CHECKING:
    from harness.serve.sources import Source

PORT = 8321


@click.command(short_help="Show all runs on a local page: filter, compare, watch.")
@click.argument("stores", nargs=-1, metavar="[STORES]...")
@results_in("results")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; any but loopback wants a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one.")
@click.option("--token", default=None, help="What readers must know.  [default: a fresh token, if one is needed]")
@click.option("--name", "names", multiple=True, help="A host name by which readers may address this server.")
def serve(
    stores: tuple[str, ...], results: Path, host: str, port: int, token: str | None, names: tuple[str, ...]
) -> None:
    """Show all runs of --results, and of STORES, on a local page: other results folders, or object stores (s3://…).

    The page only reads.  It listens at loopback; at any other address it wants the token that is printed.
    """
    from harness.serve.app import listen, serve_until_stopped

    sources = [_source("results", str(results))]
    sources += [_source(f"{number}: {place.partition('?')[0]}", place) for number, place in enumerate(stores, 1)]
    if token is None and not _is_loopback(host):
        token = secrets.token_urlsafe(24)
    try:
        socket = listen(host, port)
    except OSError as problem:
        raise WrongSpec(f"cannot listen at {host} port {port}: {problem.strerror or problem}") from None
    address = f"http://{'[' + host + ']' if ':' in host else host}:{socket.getsockname()[1]}/"
    click.echo(f"runs: {address}{'?token=' + token if token else ''}   (Ctrl-C ends it)")
    serve_until_stopped(sources, socket, (host, *names), token)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _source(name: str, place: str) -> Source:
    """Raises WrongSpec for a place that holds no runs."""
    from harness.lake.lake import Lake, lake_of
    from harness.serve.sources import Source
    from harness.store import Store, StoreUnavailable, is_store

    if is_store(place):
        try:
            mirror = Store.at(place).mirror()
            return Source(name, mirror.refresh(), mirror)
        except StoreUnavailable as problem:
            raise WrongSpec(str(problem)) from None
    folder = Path(place)
    if not folder.is_dir():
        raise WrongSpec(f"{place} is no folder of runs")
    lake = Lake(lake_of(folder))
    if not lake.folder.exists():
        held = lake.rebuild(folder.resolve(), lambda line: click.echo(line, err=True))
        click.echo(f"{place} had no lake; it holds {held} runs now")
    return Source(name, lake)
