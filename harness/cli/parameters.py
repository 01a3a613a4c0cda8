"""Options and types of arguments that several commands share, and the names that a shell completes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from harness.spec import BESIDE, OPTIONS, Spec, WrongSpec, option_of

if TYPE_CHECKING:
    from rich.console import Console

    from harness.store import Store

_DEFAULT = Spec()
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Name(click.ParamType[str]):
    """A name from a table.  This type accepts any text; `harness.registry` refuses unknown names later.

    known: returns the names that fit the preceding words; called only to complete a word in a shell
    """

    name = "name"

    def __init__(self, known: Callable[[click.Context], Iterable[str]]) -> None:
        self._known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._known(ctx) if name.startswith(incomplete)]


class Amount(click.FloatRange):
    """A number in a range.  NaN is refused, which comparisons with the ends of the range would not do."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def plain_console() -> Console:
    """Return a console that prints lines without wrapping, highlighting or markup."""
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)


def _names_in(table: str, *more: str) -> Callable[[click.Context], Iterable[str]]:
    """Return a function that returns names for a shell.

    table: "module:attribute" of a table or a function; imported only when a shell requests the names
    more: further names"""

    def names(_: click.Context) -> Iterable[str]:
        from harness.registry import load

        found = load(table)
        return (*more, *(found() if callable(found) else found))

    return names


subjects, workloads = _names_in("harness.registry:SUBJECTS"), _names_in("harness.registry:WORKLOADS")
backends, nemeses = _names_in("harness.registry:BACKENDS", "auto"), _names_in("nemesis.kinds:summaries")
findings = _names_in("harness.real_systems:names_of_runs")


def bugs(context: click.Context) -> Iterable[str]:
    """Return the planted bugs of the subject that the preceding words name."""
    from harness.registry import SUBJECTS, load_subject

    subject = str(context.params.get("subject"))
    return load_subject(subject).bugs if subject in SUBJECTS else ()


_NAMES: Mapping[str, Callable[[click.Context], Iterable[str]]] = {
    "subjects": subjects, "workloads": workloads, "backends": backends, "nemeses": nemeses, "bugs": bugs,
}  # fmt: skip
"""Kind of names that an option accepts (`Option.names`) -> function that returns the names for a shell."""


def spec_option(name: str, default: Any = ..., help_words: str = "") -> Callable[[Decorated], Decorated]:
    """Return the command-line option of a field of `Spec`.  The command gets its value as a parameter with the name of
    the field.

    default: replaces the field's default; None if the command determines the default
    help_words: replaces the field's help
    """
    about, of = OPTIONS[name], getattr(_DEFAULT, name) if default is ... else default
    flag, words = option_of(name), help_words or about.help
    if isinstance(of, bool):
        on_or_off = f"{flag}/{flag.replace('--', '--no-', 1)}" if of else flag
        return click.option(on_or_off, name, is_flag=True, default=of, show_default=of, help=words)
    kind: Any = type(getattr(_DEFAULT, name))
    if about.names:
        kind = Name(_NAMES[about.names])
    elif kind is type(None):
        kind = click.Path(exists=about.existing, dir_okay=False)
    if about.unset and default is None:
        words += f"  [default: {about.unset}]"
    shown = default is not None and of not in (None, "") and not about.unset
    return click.option(flag, name, type=kind, default=of, show_default=shown, metavar=about.metavar, help=words)


def spec_options(command: Decorated) -> Decorated:
    """Add the options of all fields of `Spec` to a command.  An option that the user omits is None if its default is
    determined later."""
    for name, about in reversed(list(OPTIONS.items())):
        command = spec_option(name, None if about.unset and name != "holds" else ...)(command)
    return command


def _known_master(_: click.Context, __: click.Parameter, master: str | None) -> str | None:
    if not master:
        return None
    from checkers.spark.settings import problem_with

    if problem := problem_with(master):
        raise click.BadParameter(problem)
    return master


def results_in(folder: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --results.

    folder: default of the option"""
    return click.option(
        "--results",
        type=click.Path(path_type=Path),
        default=Path(folder),
        show_default=True,
        help="The folder that keeps the runs.",
    )


note_folder = click.option("--note-folder", type=click.Path(path_type=Path), default=None, hidden=True)
"""File to which a run writes the path of its folder, so that a campaign finds the folder of its child process."""


def beside() -> tuple[str, ...]:
    """Return the user's options of this command that are not in `Spec`, for the command that repeats the test.

    Empty for a child of a campaign, because the campaign and not the user has chosen its folder.
    """
    context = click.get_current_context()
    names = {option: option.removeprefix("--").replace("-", "_") for option in BESIDE}
    given = context.params if context.params.get("note_folder") is None else {}
    return tuple(
        word
        for option, name in names.items()
        if given.get(name) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for word in (option, str(given[name]))
    )


spark_master = click.option(
    "--spark-master",
    metavar="URL",
    default=None,
    callback=_known_master,
    help="Judge on this Spark cluster (docs/cluster.md) instead of in this process.",
)

as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object on stdout (verdict, exit code, path of the report), and all other output on stderr.",
)

every_checker = click.option("--all", "every", is_flag=True, help="List also the checkers that found nothing wrong.")

trust = click.option(
    "--trust",
    is_flag=True,
    help="Execute the system and workload in RUN_FOLDER, although neither this machine nor a key that you trust has "
    "signed them.  Read them first: they run with your rights.",
)


def refusing(check: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return the callback of an option that refuses a text for which `check` raises OSError or ValueError."""

    def checked(_: click.Context, __: click.Parameter, text: str) -> str:
        try:
            if text:
                check(text)
        except (OSError, ValueError) as problem:
            raise click.BadParameter(str(problem)) from None
        return text

    return checked


def _demand_answer(address: str) -> None:
    from harness.store import Store

    Store.at(address).check()


store = click.option(
    "--store",
    metavar="URI",
    default="",
    callback=refusing(_demand_answer),
    help="An object store with runs, such as s3://bucket/prefix; see docs/store.md.",
)


class RunAddress(click.ParamType[Path]):
    """A run folder, or the address of a run in a store.  A run in a store is fetched, and `fetched_from` returns the
    store.  The value is the path of the folder.
    """

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "://" not in str(value):
            folder = Path(value)
            if not folder.is_dir():
                wrong = "is a file" if folder.exists() else "does not exist"
                self.fail(f"Directory {str(value)!r} {wrong}.", param, ctx)
            return folder
        from harness.store import Store, StoreUnavailable, parted  # it imports pyarrow

        try:
            address, run = parted(str(value))
            held = Store.at(address)
            folder = held.mirror().fetch(run)
        except (LookupError, StoreUnavailable) as problem:
            self.fail(str(problem.args[0]), param, ctx)
        if ctx is not None:
            ctx.meta[_FETCHED] = held
        return folder


def demand_run(folder: Path) -> Path:
    """Return the path of a run folder without symbolic links.  Raises WrongSpec if it is no run folder."""
    if not (folder / "test.json").exists():
        raise WrongSpec(f"{folder} is not a run folder: it holds no test.json")
    return folder.resolve()


_FETCHED = "krucible: the store that a run was fetched from"


def fetched_from() -> Store | None:
    """Return the store from which this command's run was fetched; None if the user named a folder."""
    found = click.get_current_context().meta.get(_FETCHED)
    return found if found is None else cast("Store", found)
