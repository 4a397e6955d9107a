"""The run folder: append, read back, resume, refuse.

    config.json     what the run is: enough to run it again, and to refuse another run in its place
    samples.jsonl   one line per task × method × prompt, written as they finish
    results.json    the numbers, written when every sample is there

A killed run loses at most the batch in flight: a line that was cut off is dropped when the run goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from workbench.errors import RunFolderError

# Recorded, but free to change between the parts of one run: no sample depends on them.
FREE = ("batch_size", "command", "paths")


@dataclass(frozen=True)
class Sample:
    """One completion and its scores; `method` is a method, the name of an expert alone, or "base"."""

    task: str
    method: str
    id: str
    prompt: str
    reference: str
    text: str
    finish: str
    tokens: int
    scores: Mapping[str, float]
    overlap: Mapping[str, float] = field(default_factory=dict)  # of the experts, along a composed answer

    @property
    def key(self) -> tuple[str, str, str]:
        return self.task, self.method, self.id


class RunFolder:
    """Opens `path` for the run that `config` describes, to begin it or to go on with it.

    Raises RunFolderError if the folder holds another run, is in use, or is damaged.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.config: dict[str, Any] = json.loads(json.dumps(config))
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign()
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be written to", error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise RunFolderError(
                f"{path}: another run is writing there", way_out="Wait for it, or give another --output."
            ) from error
        try:
            self._check_config()
            self.samples = self._read_samples()
        except BaseException:
            self._lock.close()
            raise
        self._file = (path / "samples.jsonl").open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.close()

    def append(self, samples: Iterable[Sample]) -> None:
        """Writes the samples to the disk before it returns."""
        new = list(samples)
        self._file.write(b"".join(json.dumps(asdict(s), ensure_ascii=False).encode() + b"\n" for s in new))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.samples.extend(new)

    def write(self, name: str, text: str) -> Path:
        """Writes a whole file of the folder, or nothing."""
        return write_file(self.path / name, text)

    def _refuse_foreign(self) -> None:
        """Before anything is written there, even the lock; a run that was killed at once left these two."""
        found = {entry.name for entry in self.path.iterdir()}
        if "config.json" not in found and (others := sorted(found - {".lock", "config.json.part"})):
            raise RunFolderError(
                f"{self.path}: not a run folder, and not empty ({others[0]})",
                way_out="Give an empty or new folder with --output.",
            )

    def _check_config(self) -> None:
        file = self.path / "config.json"
        if not file.exists():
            self.write("config.json", json.dumps(self.config, indent=2, ensure_ascii=False) + "\n")
            return
        before = read_json(file)
        for name in dict.fromkeys([*before, *self.config]):
            if name not in FREE and before.get(name) != self.config.get(name):
                raise RunFolderError(
                    f"{self.path}: holds a run with another configuration",
                    f"'{name}' is {_short(before.get(name))} there and {_short(self.config.get(name))} now",
                    "Give another --output, or the same options to go on with it.",
                )

    def _read_samples(self) -> list[Sample]:
        file = self.path / "samples.jsonl"
        if not file.exists():
            return []
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        samples = parse_samples(file, whole)
        if len(whole) < len(content):
            with file.open("r+b") as torn:
                torn.truncate(len(whole))
        return samples


def write_file(target: Path, text: str) -> Path:
    """Writes the whole file, or nothing."""
    partial = target.with_suffix(target.suffix + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)
    return target


def parse_samples(file: Path, content: bytes) -> list[Sample]:
    """The samples in `content`; raises RunFolderError for a line that is none, or a sample given twice."""
    names = {name.name for name in fields(Sample)}
    texts = [name.name for name in fields(Sample) if name.type == "str"]
    samples: dict[tuple[str, str, str], Sample] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            record = json.loads(line)
            sample = Sample(**record)
            right = isinstance(sample.scores, dict) and isinstance(sample.overlap, dict)
            if not right or not all(isinstance(record[name], str) for name in texts):
                raise TypeError
        except (ValueError, TypeError) as error:
            raise RunFolderError(
                f"{file}: line {number} is damaged",
                f"an object with {', '.join(sorted(names))}",
                "Remove the line to have its sample made again.",
            ) from error
        if sample.key in samples:
            raise RunFolderError(
                f"{file}: line {number} repeats {' / '.join(sample.key)}", way_out="Remove it."
            )
        samples[sample.key] = sample
    return list(samples.values())


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file}: cannot be read as JSON", str(error)) from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{file}: not a JSON object")
    return content


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."
