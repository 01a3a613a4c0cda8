"""`serve`: the local page over many runs."""

from __future__ import annotations

import ipaddress
import secrets
from pathlib import Path

import click

from harness.cli.parameters import results_in
from harness.spec import WrongSpec

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
    """Show all runs of --results, and of other results folders, on a local page.

    The page only reads.  It listens at loopback; at any other address it wants the token that is printed.
    """
    from harness.lake.lake import Lake, lake_of
    from harness.serve.server import listen, serve_until_stopped
    from harness.serve.sources import Source

    places = [results, *map(Path, stores)]
    for place in places[1:]:
        if not place.is_dir():
            raise WrongSpec(f"{place} is no folder of runs")
    sources = [
        Source("results" if place is results else f"{n}-{place.name}", Lake(lake_of(place)))
        for n, place in enumerate(places)
    ]
    for place, source in zip(places, sources, strict=True):
        if place.is_dir() and not source.lake.folder.exists():
            held = source.lake.rebuild(place.resolve(), lambda line: click.echo(line, err=True))
            click.echo(f"{place} had no lake; it holds {held} runs now")
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
