"""The theorems on the experts that ship; the rest of them runs with `workbench verify`."""

from __future__ import annotations

import pytest

from workbench.models import open_base
from workbench.theory import features, intervals, lengths
from workbench.theory.subject import shipped_subject


@pytest.mark.parametrize("check", [features, intervals, lengths])
def test_statements_hold_and_twins_show_their_violation(check):
    rows = check.shipped(shipped_subject(open_base("mini"), 64)).rows
    assert [row for row in rows if row.holds is not True] == []
    assert any(row.broken for row in rows)
