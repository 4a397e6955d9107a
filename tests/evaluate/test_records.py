"""The run folder: what was written is read back, a run goes on, and another run is refused by name."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import RunFolderError
from workbench.evaluate.records import RunFolder, Sample, parse_samples, read_json

CONFIG: dict[str, Any] = {
    "base": "ab" * 32,
    "methods": ["logit"],
    "seed": 0,
    "batch_size": 8,
    "command": ["workbench", "compare"],
    "paths": {"base": "mini"},
}


def sample(number: int, text: str = "bb") -> Sample:
    return Sample("letters", "logit", f"p{number}", "ab →", "bb", text, "eos", 3, {"exact_match": 1.0})


def write(folder: Path, count: int = 3) -> Path:
    with RunFolder(folder, CONFIG) as run:
        for number in range(count):
            run.append([sample(number)])
    return folder / "samples.jsonl"


ODD = ["", "line\nbreak\r\n", "\u2028\x85\x0b", "é😀\u200f", '"}\n{"', "\x00"]


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    samples = [sample(number, text) for number, text in enumerate(ODD)]
    with RunFolder(tmp_path, CONFIG) as run:
        run.append(samples)
        assert run.samples == samples
        file = tmp_path / "samples.jsonl"
        assert parse_samples(file, file.read_bytes()) == samples  # on the disk before the folder is closed
    with RunFolder(tmp_path, CONFIG) as run:
        assert run.samples == samples
        assert run.config == CONFIG
    assert len((tmp_path / "samples.jsonl").read_bytes().split(b"\n")) == len(samples) + 1


def test_every_cut_of_the_last_line_loses_that_line_alone(tmp_path: Path) -> None:
    file = write(tmp_path, count=2)
    whole = file.read_bytes()
    first, last = whole.splitlines(keepends=True)
    for cut in range(len(last)):
        file.write_bytes(first + last[:cut])
        with RunFolder(tmp_path, CONFIG) as run:
            assert run.samples == [sample(0)]
            run.append([sample(1)])
        assert file.read_bytes() == whole


def test_a_folder_that_is_new_or_empty_or_was_killed_at_once_can_be_begun(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".lock").touch()
    (tmp_path / "killed" / "config.json.part").write_text("{")
    for name in ("new/below", "killed"):
        with RunFolder(tmp_path / name, CONFIG) as run:
            assert run.samples == []
        assert read_json(tmp_path / name / "config.json") == CONFIG


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seed", 7, "'seed' is 0 there and 7 now"),
        (
            "methods",
            ["logit", "task_arith"],
            '\'methods\' is ["logit"] there and ["logit", "task_arith"] now',
        ),
        ("limit", 10, "'limit' is null there and 10 now"),
    ],
)
def test_another_configuration_is_refused_by_field_and_values(
    tmp_path: Path, name: str, value: object, said: str
) -> None:
    file = write(tmp_path)
    before = file.read_bytes()
    with pytest.raises(RunFolderError) as caught:
        RunFolder(tmp_path, {**CONFIG, name: value})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == before
    assert read_json(tmp_path / "config.json") == CONFIG


def test_what_no_sample_depends_on_may_change(tmp_path: Path) -> None:
    write(tmp_path)
    changed = {**CONFIG, "batch_size": 64, "command": ["other"], "paths": {"base": "elsewhere"}}
    with RunFolder(tmp_path, changed) as run:
        assert len(run.samples) == 3


def test_a_folder_with_other_things_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear")
    with pytest.raises(RunFolderError, match=r"not empty \(thesis.tex\)"):
        RunFolder(tmp_path, CONFIG)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written to"):
        RunFolder(tmp_path / "run", CONFIG)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff"])
def test_a_damaged_configuration_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_bytes(content.encode("latin1"))
    with pytest.raises(RunFolderError, match=r"config\.json"):
        RunFolder(tmp_path, CONFIG)


LINE = asdict(sample(1))


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00\x00\x00",
        b'{"task": "let',
        b"[]",
        b"null",
        b"{}",
        json.dumps({**LINE, "more": 1}).encode(),
        json.dumps({**LINE, "id": ["p1"]}).encode(),
        json.dumps({**LINE, "text": None}).encode(),
        json.dumps({**LINE, "scores": 1.0}).encode(),
    ],
)
def test_a_damaged_line_in_the_middle_is_refused_by_number(tmp_path: Path, damaged: bytes) -> None:
    file = write(tmp_path)
    lines = file.read_bytes().splitlines()
    lines[1] = damaged
    file.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(RunFolderError, match="line 2 is damaged"):
        RunFolder(tmp_path, CONFIG)


def test_a_sample_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path)
    content = file.read_bytes()
    with pytest.raises(RunFolderError, match="line 4 repeats letters / logit / p0"):
        parse_samples(file, content + content.splitlines(keepends=True)[0])


def test_a_refused_folder_is_free_again(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(RunFolderError):
        RunFolder(tmp_path, {**CONFIG, "seed": 1})
    with RunFolder(tmp_path, CONFIG) as run:
        assert len(run.samples) == 3


def test_a_whole_file_is_written_or_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path, CONFIG) as run:
        run.write("results.json", "one")
        with pytest.raises(UnicodeEncodeError):
            run.write("results.json", "two \ud800")
        assert (tmp_path / "results.json").read_text() == "one"


# Appends five samples, and stops for ever in the middle of the line of a sixth.
WRITER = """
import sys, time
from pathlib import Path
from workbench.evaluate.records import RunFolder, Sample

class Torn:
    def __init__(self, file):
        self.file = file

    def write(self, content):
        self.file.write(content[:len(content) // 2])
        self.file.flush()
        print("half a line", flush=True)
        time.sleep(600)

with RunFolder(Path(sys.argv[1]), eval(sys.argv[2])) as run:
    for number in range(6):
        if number == 5:
            run._file = Torn(run._file)
        scores = {"exact_match": 1.0}
        run.append([Sample("letters", "logit", f"p{number}", "ab →", "bb", "bb", "eos", 3, scores)])
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER, str(folder), repr(CONFIG)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def test_one_process_holds_the_folder_and_a_kill_frees_it_and_loses_a_torn_line_alone(tmp_path: Path) -> None:
    with writer(tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half a line\n"
        with pytest.raises(RunFolderError, match="another run is writing there"):
            RunFolder(tmp_path, CONFIG)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    content = (tmp_path / "samples.jsonl").read_bytes()
    assert content.count(b"\n") == 5
    assert not content.endswith(b"\n")
    with RunFolder(tmp_path, CONFIG) as run:
        assert run.samples == [sample(number) for number in range(5)]
        run.append([sample(5)])
    assert write(tmp_path / "in one go", count=6).read_bytes() == (tmp_path / "samples.jsonl").read_bytes()
