"""When is composition right? Each theorem of the paper in a file of its own, with a check that can fail.

`run` yields what each check of CHECKS finds. A check has up to three parts:

    exact()            on models that are written out in tables
    shipped(subject)   on the experts that ship with the mini model
    measured(subject)  on the experts in question, whatever they are
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from workbench.report.statement import Finding
from workbench.theory import bridge, features, intervals, lengths, masks, overlap, scores
from workbench.theory.subject import Subject

Model = Callable[[Subject], Finding]


@dataclass(frozen=True)
class Check:
    about: str
    exact: Callable[[], Finding] | None = None
    shipped: Model | None = None
    measured: Model | None = None


CHECKS: dict[str, Check] = {
    "bridge": Check("Linear models: logit composition is task arithmetic", measured=bridge.measured),
    "masks": Check("Factorized conditionals in token space", exact=masks.exact),
    "intervals": Check("When an expert acts", exact=intervals.exact, shipped=intervals.shipped),
    "overlap": Check(
        "Experts that act at different times",
        exact=overlap.exact,
        shipped=overlap.shipped,
        measured=overlap.measured,
    ),
    "features": Check("Factorization in feature space", exact=features.exact, shipped=features.shipped),
    "lengths": Check("Length generalization", shipped=lengths.shipped),
    "scores": Check("Where the rule comes from: scores add", exact=scores.exact),
}


def run(
    subject: Subject, shipped: Subject | None, on_check: Callable[[str], None]
) -> Iterator[tuple[str, str, Finding]]:
    """(name, what it is about, what was found) of each check on `subject`, and with `shipped`, the shipped
    model under all its experts, on that and on tables as well. `on_check(about)` hears what begins."""
    for name, check in CHECKS.items():
        if shipped is None and check.measured is None:
            continue
        on_check(check.about)
        found = []
        if shipped is not None and check.exact:
            found.append(check.exact())
        if shipped is not None and check.shipped:
            found.append(check.shipped(shipped))
        if check.measured:
            found.append(check.measured(subject))
        yield name, check.about, _together(found)


def _together(found: Sequence[Finding]) -> Finding:
    return Finding(
        [row for finding in found for row in finding.rows],
        [curves for finding in found for curves in finding.curves],
        [sentence for finding in found for sentence in finding.words],
    )
