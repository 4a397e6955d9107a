"""The errors a user can cause. Caught once, in `cli.py`: one line on stderr, exit status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """A user's mistake: `what` is wrong, what was `expected`, and the `way_out`.

    Reads as one line: "what: expected. way_out".
    """

    def __init__(self, what: str, expected: str = "", way_out: str = "") -> None:
        self.what, self.expected, self.way_out = what, expected, way_out
        line = f"{what}: {expected}" if expected else what
        super().__init__(" ".join(f"{line}. {way_out}".split()) if way_out else line)


class UnknownName(WorkbenchError):
    """A name that is in no list; the message gives the nearest names, else all of them."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {kind} '{name}'", hint)


class AdapterError(WorkbenchError):
    """An adapter folder that cannot be read exactly, or does not fit the base."""


class RunFolderError(WorkbenchError):
    """A run folder that cannot be used: another configuration, another process, damaged."""
