"""What the checks found to one self-contained HTML file, and to JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from math import isfinite
from typing import Any

from jinja2 import Environment, StrictUndefined

from workbench.report.curves import svg
from workbench.report.statement import Finding, Row

Checks = Sequence[tuple[str, str, Finding]]  # name, what it is about, what it found


def failures(checks: Checks) -> list[Row]:
    return [row for _, _, finding in checks for row in finding.rows if row.holds is False]


def sentence(checks: Checks) -> str:
    claims = [row for _, _, finding in checks for row in finding.rows if row.holds is not None]
    failed = len(failures(checks))
    return (
        f"All {len(claims)} statements hold." if not failed else f"{failed} of {len(claims)} statements fail."
    )


def write_page(checks: Checks, settings: Mapping[str, Any]) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["svg"] = svg
    template = files(__package__).joinpath("verify.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        checks=checks,
        sentence=sentence(checks),
        settings="; ".join(f"{name}: {value}" for name, value in settings.items()),
    )


def results_json(checks: Checks, settings: Mapping[str, Any]) -> str:
    found = {
        name: {
            "about": about,
            "rows": [
                asdict(row) | {"value": row.value if isfinite(row.value) else None, "holds": row.holds}
                for row in finding.rows
            ],
            "curves": [asdict(curves) for curves in finding.curves],
            "words": list(finding.words),
        }
        for name, about, finding in checks
    }
    return json.dumps({"settings": settings, "checks": found}, indent=2, ensure_ascii=False) + "\n"
