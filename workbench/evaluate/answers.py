"""An answer out of text, and when two answers are equal."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_NUMBER = r"[-−]?\s?\$?\s?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?"


def _decimal(text: str) -> Decimal | None:
    cleaned = re.sub(r"[\s$,]", "", text).replace("−", "-")
    try:
        return Decimal(cleaned)
    except InvalidOperation:
        return None


def hashes_number(text: str) -> Decimal | None:
    """The number after the first `####`, or None: GSM8K's strict answer.

    `$`, thousands commas and a trailing full stop are not part of the number.
    """
    found = re.search(rf"####\s*({_NUMBER})", text)
    return _decimal(found.group(1)) if found else None
