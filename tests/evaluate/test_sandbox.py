"""Programs that a careless or hostile model may write, each really run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from workbench.evaluate.sandbox import Outcome, call, same

PATIENT = 30.0  # seconds, for what must end by itself on a busy machine


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


def run(code: str, *inputs: object, seconds: float = PATIENT, memory_mib: int = 256) -> list[Outcome]:
    return call(code, "f", [[x] for x in inputs], seconds=seconds, memory_mib=memory_mib)


VALUES = [0, -1, 10**30, True, False, None, 1.5, "", "é\u2028\x00", [], [1, [2, "a"]], {"a": [1]}, {}]


def test_values_go_in_and_come_back_with_their_types() -> None:
    outcomes = run("def f(x): return x", *VALUES)
    assert statuses(outcomes) == ["ok"] * len(VALUES)
    assert all(same(outcome.value, value) for outcome, value in zip(outcomes, VALUES, strict=True))


def test_tuples_sets_and_keys_that_json_lacks_come_back() -> None:
    code = "def f(x): return [(1, (2,)), {3, (4,)}, {1: 'a', (2,): 'b', None: 'c'}, float('inf'), set()][x]"
    wanted = [(1, (2,)), {3, (4,)}, {1: "a", (2,): "b", None: "c"}, float("inf"), set()]
    outcomes = run(code, *range(5))
    assert all(same(outcome.value, value) for outcome, value in zip(outcomes, wanted, strict=True))


def test_each_input_has_its_own_outcome() -> None:
    outcomes = run("def f(x): return 10 // x", 5, 0, 2)
    assert statuses(outcomes) == ["ok", "error", "ok"]
    assert (outcomes[0].value, outcomes[2].value) == (2, 5)
    assert outcomes[1].detail.startswith("ZeroDivisionError")
    assert call("def f(): return 1", "f", []) == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(x:", "SyntaxError"),
        ("g = 1", "KeyError"),
        ("f = 1", "TypeError"),
        ("import numpy\ndef f(x): return x", "ModuleNotFoundError"),
        ("raise SystemExit(0)\ndef f(x): return 1", "SystemExit"),
        ("import sys\ndef f(x): sys.exit(0)", "SystemExit"),
        ("def f(x): return f(x)", "RecursionError"),
        ("def f(x):\n    a = []\n    a.append(a)\n    return a", "RecursionError"),
        ("def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 24))", "MemoryError"),
        ("def f(x): return 'x' * (1 << 40)", "MemoryError"),
        ("def f(x): return 10 ** 5000", "ValueError"),  # too long to be written as JSON
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\ndef f(x): raise E",
            "cannot be described",
        ),
        (
            "class E(BaseException):\n    def __str__(self): raise KeyboardInterrupt\ndef f(x): raise E",
            "cannot be described",
        ),
    ],
)
def test_a_program_that_fails_is_an_error_in_words(code: str, says: str) -> None:
    [outcome] = run(code, 0)
    assert outcome.status == "error"
    assert says in outcome.detail
    assert len(outcome.detail) <= 200


@pytest.mark.parametrize(
    "failing",
    [
        "class E(Exception):\n    def __str__(self): raise ValueError\ndef bad(): raise E",
        "def bad(): return 10 ** 5000",
        "def bad():\n    raise SystemExit",
    ],
)
def test_one_odd_failure_costs_only_its_own_input(failing: str) -> None:
    outcomes = run(f"{failing}\ndef f(x): return bad() if x else 1", 0, 1, 0)
    assert statuses(outcomes) == ["ok", "error", "ok"]


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    while True: pass",
        "import time\ndef f(x): time.sleep(600)",
        "def f(x):\n    while True: print('x' * 10000)",
        "import sys\ndef f(x):\n    while True: sys.stderr.write('x' * 10000)",
        "while True: pass\ndef f(x): return 1",
    ],
)
def test_what_does_not_end_is_ended(code: str) -> None:
    begun = time.monotonic()
    outcomes = run(code, 0, 1, seconds=0.5)
    assert statuses(outcomes) == ["timeout", "timeout"]
    assert "0.5 s" in outcomes[0].detail
    assert time.monotonic() - begun < 10


def test_what_was_answered_in_time_counts() -> None:
    outcomes = run("def f(x):\n    while x: pass\n    return 7", 0, 1, 0, seconds=1)
    assert statuses(outcomes) == ["ok", "timeout", "timeout"]
    assert outcomes[0].value == 7


@pytest.mark.parametrize(
    "code",
    [
        "import os\ndef f(x): os._exit(0)",
        "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGKILL)",
        "import os\ndef f(x):\n    os.closerange(0, 256)\n    return 1",
        "def f(x): return 'x' * (8 << 20)",  # more than we read
    ],
)
def test_a_child_that_says_nothing_has_no_result(code: str) -> None:
    assert statuses(run(code, 0, 1)) == ["no result", "no result"]


FALSE_FRIENDS = {
    "class A:\n    def __eq__(self, other): return True\ndef f(x): return A()": 1,
    "class I(int): pass\ndef f(x): return I(1)": 1,
    "class S(str): pass\ndef f(x): return S('a')": "a",
    "class L(list):\n    def __eq__(self, other): return True\ndef f(x): return L()": [1],
    "class A:\n    def __eq__(self, other): return True\ndef f(x): return [A()]": [1],
    "class list(list): pass\ndef f(x): return list([1])": [1],
    "def f(x): return x == 0": 1,
    "def f(x): return 1": True,
    "def f(x): return 1.0": 1,
    "def f(x): return (1,)": [1],
    "def f(x): return {True: 2}": {1: 2},
    "def f(x): return {(True,)}": {(1,)},
    "def f(x): return f": None,
    'import os\nos.write(1, b\'{"ok": ["plain", 1]}\\n\')\ndef f(x): return 2': 1,
    'def f(x):\n    print(\'{"ok": ["plain", 1]}\', flush=True)\n    return 2': 1,
}


@pytest.mark.parametrize("code", FALSE_FRIENDS)
def test_no_answer_passes_for_another(code: str) -> None:
    [outcome] = run(code, 0)
    wanted = FALSE_FRIENDS[code]
    assert outcome.status == "ok"
    assert not same(outcome.value, wanted)
    assert not same(wanted, outcome.value)
    assert outcome.value is not wanted


@pytest.mark.parametrize(
    "message",
    [
        "",
        "null",
        "[]",
        "{}",
        '"ok"',
        '{"ok": 1}',
        '{"ok": ["plain", [1]]}',
        '{"ok": ["set", [["list", []]]]}',
        "x",
    ],
)
def test_a_forged_message_is_never_a_value(message: str) -> None:
    code = f"""
import os, sys
def f(x):
    os.write(int(sys.argv[1]), {(message + chr(10)).encode()!r})
    os._exit(0)
"""
    [outcome] = run(code, 0)
    assert outcome.status == "no result" or type(outcome.value).__name__ == "Opaque"


def test_the_environment_and_the_folder_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    [variables, listed, folder, text] = run(
        "import os, sys\ndef f(x): return [list(os.environ), os.listdir(), os.getcwd(), sys.stdin.read()][x]",
        *range(4),
    )
    assert isinstance(variables.value, list)
    assert set(variables.value) <= {"PYTHONHASHSEED", "LC_CTYPE"}
    assert listed.value == []
    assert text.value == ""
    assert isinstance(folder.value, str)
    assert not Path(folder.value).exists()


def test_the_same_program_gives_the_same_answer_each_time() -> None:
    code = "def f(x): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})"
    assert run(code, 0) == run(code, 0) == run(code, 0)


def test_the_folder_is_removed_whatever_a_program_puts_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
import os
def f(x):
    os.symlink('/', 'root')
    os.mkdir('shut', 0)
    os.mkfifo('pipe')
    open('file', 'w').write('x')
    for _ in range(1100):
        os.mkdir('deep')
        os.chdir('deep')
    return 1
"""
    memory = (
        "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    )  # a disk takes seconds for so many folders
    with tempfile.TemporaryDirectory(dir=memory) as above:
        monkeypatch.setattr(tempfile, "tempdir", above)
        assert run(code, 0)[0].value == 1
        assert os.listdir(above) == []


def test_a_file_cannot_grow_without_end() -> None:
    code = """
def f(x):
    with open('big', 'wb', 0) as file:
        for _ in range(64):
            file.write(b'x' * (1 << 20))
"""
    [outcome] = run(code, 0)
    assert outcome.status == "error"
    assert "OSError" in outcome.detail


def gone(process: int) -> bool:
    """Not there, or dead and waiting for init to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 10
    while not gone(process):
        assert time.monotonic() < deadline, f"{process} lives on"
        time.sleep(0.01)


@pytest.mark.parametrize("then", ["return os.getpid()", "while True: pass"])
def test_the_child_is_gone_afterwards(tmp_path: Path, then: str) -> None:
    note = tmp_path / "pid"
    code = f"import os\ndef f(x):\n    open({str(note)!r}, 'w').write(str(os.getpid()))\n    {then}"
    run(code, 0, seconds=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_process_that_the_program_left_behind_is_gone_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import os, time
def f(x):
    process = os.fork()
    if not process:
        time.sleep(600)
    open({str(note)!r}, 'w').write(str(process))
    return 1
"""
    assert run(code, 0, seconds=1)[0].value == 1
    wait_until_gone(int(note.read_text()))


def test_no_file_descriptor_is_left_open() -> None:
    run("def f(x): return x", 0)
    before = len(os.listdir("/proc/self/fd"))
    for code in ("def f(x): return x", "import os\ndef f(x): os._exit(1)", "def f(x"):
        run(code, 0)
    assert len(os.listdir("/proc/self/fd")) == before
