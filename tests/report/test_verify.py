"""The report of what was checked: every row, its verdict, and nothing that becomes markup."""

from __future__ import annotations

import json

from workbench.report.statement import Curves, Finding, Row
from workbench.report.verify import failures, results_json, sentence, write_page

CHECKS = [
    (
        "one",
        "About <one>",
        Finding(
            [
                Row("<s>", "q & r", 0.1, at_most=1.0),
                Row("twin", "q", 0.5, at_least=0.1, broken=True),
                Row("m", "q", 3.0),
            ],
            [Curves("A curve", "x", "y", {"line <1>": [(1, 2), (3, 4)]})],
            ["<b>safe</b>"],
        ),
    ),
    ("two", "About two", Finding([Row("wrong", "q", float("nan"), at_most=1.0)])),
]


def test_every_row_is_there_with_its_verdict():
    page = write_page(CHECKS, {"base": "<ba5e>"})
    for text in (
        "About &lt;one&gt;",
        "&lt;s&gt;",
        "q &amp; r",
        "&lt;b&gt;safe&lt;/b&gt;",
        "&lt;ba5e&gt;",
        "line &lt;1&gt;",
    ):
        assert text in page
    assert "<b>" not in page
    assert page.count(">holds</td>") == 2
    assert page.count(">FAILS</td>") == 1
    assert page.count(">–</td>") == 1
    assert page.count("assumption broken on purpose") == 1
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http-equiv", "")


def test_one_sentence_says_how_it_stands():
    assert sentence(CHECKS) == "1 of 3 statements fail."
    assert sentence(CHECKS[:1]) == "All 2 statements hold."
    assert [row.statement for row in failures(CHECKS)] == ["wrong"]


def test_results_hold_everything():
    read = json.loads(results_json(CHECKS, {"seed": 0}))
    assert read["settings"] == {"seed": 0}
    first = read["checks"]["one"]
    assert [row["holds"] for row in first["rows"]] == [True, True, None]
    assert first["curves"][0]["lines"] == {"line <1>": [[1, 2], [3, 4]]}
    assert first["words"] == ["<b>safe</b>"]
    assert read["checks"]["two"]["rows"][0]["value"] is None
