"""Rows and samples to one self-contained HTML file, and to Markdown.

Pure functions: the same rows, samples and configuration give the same text, whatever the order in which the
samples were made. What a model wrote is data on the page, never markup; the page needs no network.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from workbench.evaluate.records import Sample
from workbench.report.summary import Row

PROBLEMS = 200  # of each task that the page carries; samples.jsonl has them all
CHARACTERS = 4000  # of each text
ENDINGS = ("eos", "stop", "length")


def write_page(rows: Sequence[Row], samples: Sequence[Sample], config: Mapping[str, Any]) -> str:
    """The report as one HTML file that works from the disk.

    `config["baselines"]` (the base and each expert alone) and `config["methods"]` name the rows' methods.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": _percent, "sha256_source": _sha256_source, "overlap": _overlap}
    template = environment.from_string(
        files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    tasks = _tasks(rows, config)
    methods = [*config["baselines"], *config["methods"]]
    metrics = {row.task: row.metric for row in rows}
    problems = [_problems(task, methods, metrics.get(task, ""), samples) for task in tasks]
    return template.render(
        title=_title(config),
        sentence=_sentence(config),
        tasks=[
            {
                "name": task,
                "metric": metrics.get(task, ""),
                "groups": _groups(task, rows, config),
                "shown": len(problems[i]["problems"]),
                "total": problems[i]["total"],
            }
            for i, task in enumerate(tasks)
        ],
        overview=_overview(rows, config, tasks),
        endings=ENDINGS,
        samples={
            "methods": methods,
            "composed": list(config["methods"]),
            "tasks": [{"name": task, "problems": problems[i]["problems"]} for i, task in enumerate(tasks)],
        },
        meaning=_meaning(rows),
        characters=CHARACTERS,
        configuration=list(_flat({name: value for name, value in config.items() if name != "command"})),
        command=_command(config),
    )


def write_markdown(rows: Sequence[Row], config: Mapping[str, Any]) -> str:
    """The tables and the configuration as Markdown."""
    meaning = _meaning(rows)
    names = " overlap % | shift |" if meaning else ""
    lines = [f"# {_cell(_title(config))}", "", _cell(_sentence(config)), ""]
    for task in _tasks(rows, config):
        groups = _groups(task, rows, config)
        metric = next((row.metric for row in rows if row.task == task), "")
        lines += [f"## {_cell(task)}" + (f" ({_cell(metric)})" if metric else ""), ""]
        if not groups:
            lines += ["No samples.", ""]
            continue
        lines += [
            "| | method | score % | 95 % interval | n | eos | stop | length | tokens |" + names,
            "|---|---|--:|--:|--:|--:|--:|--:|--:|" + "--:|" * names.count("|"),
        ]
        for group in groups:
            for row in group["rows"]:
                ended = " | ".join(str(row.ended.get(why, 0)) for why in ENDINGS)
                lines.append(
                    f"| {group['short']} | {_cell(row.method)} | {_percent(row.score)} "
                    f"| {_percent(row.low)} – {_percent(row.high)} | {row.n} | {ended} | {row.tokens:.1f} |"
                    + (f" {' | '.join(_overlap(row))} |" if meaning else "")
                )
        lines.append("")
    notes = f"The interval is Wilson's. Tokens are generated tokens per sample, on average. {meaning}"
    lines += [notes.strip(), ""]
    lines += ["## Configuration", "", "| | |", "|---|---|"]
    for name, value in _flat({name: value for name, value in config.items() if name != "command"}):
        lines.append(f"| {_cell(name)} | {_cell(value)} |")
    if command := _command(config):
        lines += ["", "Run it again:", "", *(f"    {line}" for line in command.splitlines())]
    return "\n".join(lines) + "\n"


def _overlap(row: Row) -> tuple[str, str]:
    """Share of positions with two or more active experts, in percent, and shift that is counted twice."""
    return (_percent(row.overlap["share"]), f"{row.overlap['shift']:.4f}") if row.overlap else ("", "")


def _meaning(rows: Sequence[Row]) -> str:
    thresholds = {row.overlap["threshold"] for row in rows if row.overlap}
    if not thresholds:
        return ""
    return (
        "Overlap is the share of positions of the composed answers at which two or more experts are active "
        f"(KL from the base above {max(thresholds):.2g} nats, calibrated on right answers); shift is the "
        "probability per token that they move more than once."
    )


def _title(config: Mapping[str, Any]) -> str:
    return _listed(config["methods"]) or "Baselines"


def _sentence(config: Mapping[str, Any]) -> str:
    base, *experts = config["baselines"]
    if (name := config.get("paths", {}).get("base", base)) != base:
        base = f"{base} {name}"
    methods = config["methods"]
    count = f"{len(methods)} {'way' if len(methods) == 1 else 'ways'}"
    tasks = list(config.get("tasks", ()))
    on = f", on {_listed(tasks)}" if tasks else ""
    return (
        f"{count} of composing {_listed(experts) or 'no expert'} over the {base}{on}; "
        "the base and every expert alone stand beside them."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _tasks(rows: Sequence[Row], config: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*config.get("tasks", ()), *(row.task for row in rows)]))


def _groups(task: str, rows: Sequence[Row], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one task: what is composed apart from what is not; empty groups are left out."""
    found = {row.method: row for row in rows if row.task == task}
    groups = [
        {"kind": "alone", "short": "alone", "name": "Base and single experts", "of": config["baselines"]},
        {"kind": "composed", "short": "composed", "name": "Composed", "of": config["methods"]},
    ]
    for group in groups:
        group["rows"] = [found[name] for name in group["of"] if name in found]
    return [group for group in groups if group["rows"]]


def _overview(rows: Sequence[Row], config: Mapping[str, Any], tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Scores as methods × tasks; empty where one task says it all."""
    if len(tasks) < 2:
        return []
    scores = {(row.method, row.task): row.score for row in rows}
    return [
        {
            "kind": kind,
            "name": name,
            "methods": [(method, [scores.get((method, task)) for task in tasks]) for method in config[key]],
        }
        for kind, name, key in (
            ("alone", "Base and single experts", "baselines"),
            ("composed", "Composed", "methods"),
        )
        if config[key]
    ]


def _problems(task: str, methods: Sequence[str], metric: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """The task's first PROBLEMS problems by name; an answer: [method number, text, score, finish, tokens]."""
    index = {method: i for i, method in enumerate(methods)}
    by_id: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.task == task and sample.method in index:
            by_id.setdefault(sample.id, []).append(sample)
    shown = []
    for name in sorted(by_id, key=_natural)[:PROBLEMS]:
        group = sorted(by_id[name], key=lambda sample: index[sample.method])
        answers = [[index[s.method], _cut(s.text), s.scores.get(metric), s.finish, s.tokens] for s in group]
        shown.append(
            {
                "id": name,
                "prompt": _cut(group[0].prompt),
                "reference": _cut(group[0].reference),
                "answers": answers,
            }
        )
    return {"problems": shown, "total": len(by_id)}


def _natural(name: str) -> tuple[str, str]:
    """Orders "p2" before "p10"."""
    return re.sub(r"\d+", lambda number: number[0].zfill(20), name), name


def _cut(text: str) -> str:
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [… {len(text) - CHARACTERS} characters more]"


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name} / ")
        elif isinstance(value, list | tuple):
            yield f"{above}{name}", ", ".join(map(_text, value)) or "none"
        else:
            yield f"{above}{name}", _text(value)


def _text(value: object) -> str:
    """A stop string of line breaks must be seen, so text with control characters is quoted."""
    if isinstance(value, str):
        return value if value and value.isprintable() else repr(value)
    return "none" if value is None or value == {} else str(value)


def _command(config: Mapping[str, Any]) -> str:
    return shlex.join(config.get("command", ()))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _cell(text: str) -> str:
    """Text that Markdown takes as text, also inside a table."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


def _sha256_source(script: str) -> str:
    """The page's own script by its hash, so that a browser runs no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
