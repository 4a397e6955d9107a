"""The report: what it says, that nothing a model wrote becomes markup, and that it runs in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from workbench.evaluate.records import Sample
from workbench.report.page import CHARACTERS, PROBLEMS, write_markdown, write_page
from workbench.report.summary import Row, summarize

EVIL = (
    "</script><script>document.title='injected'</script><img src=x onerror=\"document.title='injected'\">"
    "<!--<script>\u2028&lt;b&gt; ]]> {{ 7 * 7 }} \x00 | `x`"
)
CONFIG: dict[str, Any] = {
    "base": "ba5e" * 16,
    "experts": {"math": "3a" * 32, "coding": "c0" * 32},
    "methods": ["logit", "task_arith"],
    "baselines": ["base", "math", "coding"],
    "weights": [1.0, 0.5],
    "tasks": {
        "sums": {"metric": "exact_match", "stop": ["\n\n"], "problems_sha256": "5f" * 32},
        "code": {"metric": "pass", "stop": [], "problems_sha256": "c7" * 32},
    },
    "limit": None,
    "seed": 0,
    "paths": {"base": "mini", "math": "experts/<math>"},
    "command": ["workbench", "compare", "--methods", "logit,task_arith", "--output", "my runs"],
}
METHODS = [*CONFIG["baselines"], *CONFIG["methods"]]
# number of the problem -> the methods that are right on it
RIGHT = {0: METHODS, 1: ["math", "logit"], 2: ["logit", "task_arith"], 3: []}


def sums(count: int = 4, evil: str = EVIL) -> list[Sample]:
    return [
        Sample(
            task="sums",
            method=method,
            id=f"sums/{number}",
            prompt=f"{number}+1? {evil}",
            reference=f"{number + 1} {evil}",
            text=f"{method} says {number} {evil}",
            finish="eos" if method in RIGHT[number % 4] else "length",
            tokens=number + 1,
            scores={"exact_match": float(method in RIGHT[number % 4])},
        )
        for method in METHODS
        for number in range(count)
    ]


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    return summarize(samples, {"sums": "exact_match", "code": "pass"}, METHODS)


def page(samples: Sequence[Sample], config: dict[str, Any] = CONFIG) -> str:
    return write_page(rows_of(samples), samples, config)


class Reader(HTMLParser):
    """Tables as lists of rows of cell texts, and the tags and attributes that occur."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.title = ""
        self._cell: list[str] | None = None
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
            self._cell = self.tables[-1][-1]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._in == "title":
            self.title += data
            self._in = ""
        if self._in not in ("script", "style"):
            self.words.append(data)
        if self._cell is not None:
            self._cell[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_tables_hold_the_rows() -> None:
    samples = sums()
    overview, table = Reader(page(samples)).tables[:2]
    assert overview[0] == ["Score, %", "sums", "code"]
    assert overview[1:] == [
        ["Base and single experts"],
        ["base", "25.0", "–"],
        ["math", "50.0", "–"],
        ["coding", "25.0", "–"],
        ["Composed"],
        ["logit", "75.0", "–"],
        ["task_arith", "50.0", "–"],
    ]
    by_method = {row.method: row for row in rows_of(samples)}
    found = {line[0]: line for line in table if len(line) > 1}
    for method in METHODS:
        row = by_method[method]
        assert found[method][2:] == [
            f"{100 * row.score:.1f}",
            f"{100 * row.low:.1f} – {100 * row.high:.1f}",
            "4",
            str(row.ended.get("eos", 0)),
            "0",
            str(row.ended.get("length", 0)),
            "2.5",
        ]
    names = [line[0] for line in table]
    assert names[1:] == [
        "Base and single experts",
        "base",
        "math",
        "coding",
        "Composed",
        "logit",
        "task_arith",
    ]


def test_overlap_has_columns_where_it_was_measured() -> None:
    samples = [
        replace(sample, overlap={"share": 0.25, "shift": 0.125, "threshold": 0.5})
        if sample.method in CONFIG["methods"]
        else sample
        for sample in sums()
    ]
    table = Reader(page(samples)).tables[1]
    assert table[0][-2:] == ["Overlap, %", "Shift"]
    by_name = {row[0]: row[-2:] for row in table[1:]}
    assert by_name["logit"] == ["25.0", "0.1250"]
    assert by_name["math"] == ["", ""]
    assert "(KL from the base above 0.5 nats, calibrated on right answers)" in Reader(page(samples)).text
    text = write_markdown(rows_of(samples), CONFIG)
    assert "| composed | logit | 75.0 | 30.1 – 95.4 | 4 | 3 | 0 | 1 | 2.5 | 25.0 | 0.1250 |" in text
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line[:1] == "|"} == {3, 12}
    assert "Overlap" not in page(sums())


def test_the_bar_is_drawn_to_scale() -> None:
    bars = [
        attributes["style"] or ""
        for tag, attributes in Reader(page(sums())).tags
        if tag == "span" and attributes.get("class") in ("fill", "interval")
    ]
    logit = {row.method: row for row in rows_of(sums())}["logit"]
    at = 2 * METHODS.index("logit")
    assert bars[at] == "width:75.0%"
    low, rest = (float(number) for number in re.findall(r":([\d.]+)%", bars[at + 1]))
    assert low == pytest.approx(100 * logit.low, abs=0.06)
    assert 100 - rest == pytest.approx(100 * logit.high, abs=0.06)


def test_the_page_is_whole_and_asks_the_network_for_nothing() -> None:
    reader = Reader(page(sums()))
    for tag, attributes in reader.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")
        assert not {"src", "href", "srcset", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    assert [tag for tag, _ in reader.tags].count("script") == 2
    style = page(sums()).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert any(
        (attributes.get("content") or "").startswith("default-src 'none'") for _, attributes in reader.tags
    )


def test_table_headers_have_a_scope() -> None:
    tags = [attributes for tag, attributes in Reader(page(sums())).tags if tag == "th"]
    assert tags
    assert all(attributes.get("scope") in ("col", "row", "rowgroup") for attributes in tags)


def test_configuration_and_command_are_there_whole() -> None:
    reader = Reader(page(sums()))
    shown = dict(line for line in reader.tables[-1])
    assert shown["base"] == CONFIG["base"]
    assert shown["experts / math"] == CONFIG["experts"]["math"]
    assert shown["tasks / code / problems_sha256"] == "c7" * 32
    assert shown["tasks / sums / stop"] == r"'\n\n'"
    assert shown["weights"] == "1.0, 0.5"
    assert shown["paths / math"] == "experts/<math>"
    assert shown["limit"] == "none"
    assert "workbench compare --methods logit,task_arith --output 'my runs'" in reader.text
    assert "logit and task_arith" in reader.title


def test_the_order_of_the_samples_does_not_matter() -> None:
    samples = sums()
    assert page(samples) == page(samples[::-1]) == page(samples)


def test_a_task_without_samples_and_a_run_without_any() -> None:
    assert "code No samples." in Reader(page(sums())).text.replace("code pass", "code")
    assert Reader(page([])).text.count("No samples.") == 2
    bare = {"methods": ["logit"], "baselines": ["base"]}
    assert "No samples." in Reader(write_page([], [], bare)).text
    assert write_markdown([], bare).startswith("# logit\n")


def test_a_large_run_makes_a_page_of_reasonable_size_that_says_what_it_leaves_out() -> None:
    samples = sums(count=1319, evil="word " * 2000)
    text = page(samples)
    assert f"sums: this page holds the first {PROBLEMS} of 1319 problems" in Reader(text).text
    assert f'"sums/{PROBLEMS - 1}"' in text
    assert f'"sums/{PROBLEMS}"' not in text
    assert "characters more]" in text
    assert len(text) < PROBLEMS * (len(METHODS) + 2) * (CHARACTERS + 200)
    assert '"n": 1319' not in text
    assert ">1319<" in text


def test_markdown_says_the_same() -> None:
    text = write_markdown(rows_of(sums()), CONFIG)
    assert "| composed | logit | 75.0 | 30.1 – 95.4 | 4 | 3 | 0 | 1 | 2.5 |" in text
    assert "| alone | base | 25.0 |" in text
    assert r"| composed | task\_arith | 50.0 |" in text
    assert f"| experts / math | {CONFIG['experts']['math']} |" in text
    assert r"experts/\<math\>" in text
    assert "    workbench compare --methods logit,task_arith --output 'my runs'" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 10)
    assert write_markdown(rows_of(sums()), CONFIG) == text


# In a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    folder = tmp_path_factory.mktemp("browser")

    def dump(text: str) -> Reader:
        """The page as it stands after its script has run, opened from the disk."""
        (folder / "report.html").write_text(text, encoding="utf-8")
        switches = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            f"--user-data-dir={folder / 'profile'}",
        ]
        command = [found, *switches, "--dump-dom", Path(folder / "report.html").as_uri()]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return Reader(result.stdout)

    return dump


def answers(reader: Reader) -> list[list[list[str]]]:
    return [table for table in reader.tables if table[0] == ["Method", "Verdict", "Answer"]]


def test_a_browser_shows_every_answer_and_runs_nothing_that_a_model_wrote(browser: Any) -> None:
    reader = browser(page(sums()))
    assert reader.title == "logit and task_arith · workbench"
    assert "4 of 4 problems" in reader.text
    assert " ".join(f"Prompt 0+1? {EVIL} Reference 1 {EVIL} Method".split()) in reader.text
    tables = answers(reader)
    assert len(tables) == 4
    for number, table in enumerate(tables):
        assert [line[0] for line in table[1:]] == METHODS
        for method, verdict, answer in table[1:]:
            right = method in RIGHT[number]
            assert verdict == ("✓ right" if right else "✗ wrong")
            assert answer.startswith(f"{method} says {number} ")
            why = "ended itself" if right else "cut at the length limit"
            assert answer.endswith(f"{why}, {number + 1} {'token' if number == 0 else 'tokens'}")
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not [tag for tag, _ in reader.tags if tag in ("img", "b")]


def drive(text: str, script: str) -> str:
    """The page with a hand on it: its own policy would rightly refuse this script."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    return text.replace("</body>", f"<script>{script}</script></body>")


# Turns the filters as a hand would, and leaves in the title what the page showed each time.
HAND = """
const seen = [], at = (id) => document.getElementById(id);
const note = () => seen.push([
  at("count").textContent,
  [...document.querySelectorAll(".problem h3")].map((title) => title.textContent.split("/")[1]).join(" "),
  at("more").hidden,
]);
const choose = (id, value) => {
  at(id).value = value;
  at(id).dispatchEvent(new Event("change"));
  note();
};
note();
at("more").click(); note();
at("more").click(); note();
for (const value of ["disagree", "any", "wrong", "all"]) choose("show", value);
choose("task", "1");
document.title = JSON.stringify(seen);
"""


def test_a_browser_filters_and_shows_more(browser: Any) -> None:
    text = page(sums(count=45, evil=""))
    # the page's own policy would rightly refuse the hand
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    seen = json.loads(browser(text.replace("</body>", f"<script>{HAND}</script></body>")).title)

    def names(*kinds: int, most: int = 20) -> str:
        return " ".join([str(number) for number in range(45) if number % 4 in kinds][:most])

    every = (0, 1, 2, 3)
    assert seen == [
        ["45 of 45 problems", names(*every), False],
        ["45 of 45 problems", names(*every, most=40), False],
        ["45 of 45 problems", names(*every, most=45), True],
        ["11 of 45 problems", names(1), True],
        ["22 of 45 problems", names(1, 2), False],
        ["22 of 45 problems", names(1, 3), False],
        ["45 of 45 problems", names(*every), False],
        ["0 of 0 problems", "", True],
    ]
