"""Runs a program that a model wrote, in a child process, never in ours.

The child gets the code, the entry point and the inputs; it sends back tagged values over a pipe of
its own. Expected answers stay with the caller, who compares: a program cannot read or forge what it
never sees. The child starts with an empty environment, in an empty folder that is removed afterwards,
in a session of its own that is killed when the verdict is in, under limits of time, memory, processes,
open files and output.

It does not stop a program from reading the user's files or using the network, nor a process of it that leaves
the session's process group (setsid, setpgid) from living on. The limit of processes does not bind root.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUNNER = Path(__file__).with_name("sandbox_child.py")
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Outcome:
    """What one call did: `status` is "ok" (`value` holds the result), "error", "timeout" or "no result"."""

    status: str
    value: object = None
    detail: str = ""


class Opaque:
    """A value of a type that does not cross the border; equal to nothing, not even itself."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


def call(
    code: str,
    entry_point: str,
    inputs: Sequence[Sequence[object]],
    *,
    seconds: float = 5.0,
    memory_mib: int = 512,
) -> list[Outcome]:
    """Defines `code` and calls `entry_point(*args)` for each args in `inputs`; one Outcome per input.

    `seconds` is the wall-clock limit of the whole child. Inputs are JSON values.
    """
    job = {"code": code, "entry_point": entry_point, "inputs": [list(args) for args in inputs]}
    receive, send = os.pipe()
    limits = [str(send), str(int(seconds) + 1), str(memory_mib)]
    folder = tempfile.mkdtemp(prefix="workbench-")
    try:
        child = subprocess.Popen(
            [sys.executable, "-s", "-P", "-S", "-B", str(RUNNER), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            pass_fds=(send,),
            start_new_session=True,
        )
        os.close(send)
        try:
            _feed(child, json.dumps(job).encode())
            received, timed_out = _read(receive, time.monotonic() + seconds)
        finally:
            os.close(receive)
            _kill_session(child)
    finally:
        _remove(folder)
    missing = Outcome("timeout", detail=f"over {seconds:g} s") if timed_out else Outcome("no result")
    return _outcomes(received, len(inputs), missing)


def _feed(child: subprocess.Popen[bytes], job: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(job)
        child.stdin.close()
    except BrokenPipeError:
        pass  # the child died; the missing results say so


def _read(receive: int, deadline: float) -> tuple[bytes, bool]:
    """What the child sent until it closed the pipe, or until the deadline or the size limit."""
    received = bytearray()
    while len(received) < _MAX_BYTES:
        ready, _, _ = select.select([receive], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return bytes(received), True
        chunk = os.read(receive, 65536)
        if not chunk:
            break
        received += chunk
    return bytes(received), False


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _remove(folder: str) -> None:
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(folder):  # nested deeper than that function can follow, or shut
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def _outcomes(received: bytes, count: int, missing: Outcome) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for line in received.split(b"\n")[:-1][:count]:
        try:
            message = json.loads(line)
            if "error" in message:
                outcomes.append(Outcome("error", detail=str(message["error"])[:200]))
            else:
                outcomes.append(Outcome("ok", value=decode(message["ok"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            outcomes.append(Outcome("no result", detail="unreadable message"))
    return outcomes + [missing] * (count - len(outcomes))


def decode(tagged: object) -> object:
    """A value from its tagged form [type, content]; exact base types, anything else is `Opaque`."""
    match tagged:
        case ["plain", None | bool() | int() | float() | str() as value]:
            return value
        case ["list", list() as items]:
            return [decode(item) for item in items]
        case ["tuple", list() as items]:
            return tuple(decode(item) for item in items)
        case ["dict", list() as pairs]:
            return {decode(key): decode(value) for key, value in pairs}
        case ["set", list() as items]:
            return {decode(item) for item in items}
    return Opaque()


def same(value: object, expected: object) -> bool:
    """Equal with equal types all the way down: True is not 1, (1,) is not [1], {True} is not {1}."""
    if type(value) is not type(expected):
        return False
    if isinstance(value, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return same(set(value), set(expected)) and all(same(value[key], expected[key]) for key in value)
    if isinstance(value, set) and isinstance(expected, set):
        return {_exact(item) for item in value} == {_exact(item) for item in expected}
    return value == expected


def _exact(item: object) -> object:
    """A hashable value with its type, and the types within."""
    return type(item), tuple(map(_exact, item)) if isinstance(item, tuple) else item
