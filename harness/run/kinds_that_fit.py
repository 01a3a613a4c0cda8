"""Which kinds of fault a system and a backend allow, and the nemesis `all` that stands for every one of them."""

from __future__ import annotations

from dataclasses import replace

from harness.run.refused_before_start import check_spec
from harness.run.session import backend_at_hand, lacking
from harness.spec import Spec, WrongSpec
from nemesis.catalog import EVERY, KINDS, NONE


def why_not(spec: Spec, kind: str) -> str:
    """Why this kind of fault cannot be part of such a run, "" if it can be.  spec: its backend is not "auto"."""
    single = replace(spec, nemesis=kind)
    try:
        check_spec(single)
    except ValueError as problem:
        return str(problem)
    return "" if kind == NONE else lacking(single, spec.backend)


def with_every_kind(spec: Spec) -> tuple[Spec, dict[str, str]]:
    """The spec with its nemesis written out, if that is `all`; and why each other kind was left out.

    Raises WrongSpec where no kind of fault fits.
    """
    if spec.nemesis != EVERY:
        return spec, {}
    here = replace(spec, backend=backend_at_hand(spec))
    reasons = {kind: why_not(here, kind) for kind in KINDS}
    fitting = [kind for kind, why in reasons.items() if not why]
    left_out = {kind: why for kind, why in reasons.items() if why}
    if not fitting:
        raise WrongSpec(f"no kind of fault fits: {next(iter(left_out.values()))}")
    return replace(spec, nemesis=",".join(fitting)), left_out
