"""What a user writes on the command line, as names, paths and numbers; mistakes are one clear line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import UnknownName, WorkbenchError


def names(kind: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise WorkbenchError(f"no {kind} given", f"--{kind}s takes names with commas between")
    for name in names:
        if names.count(name) > 1:
            raise WorkbenchError(f"{kind} '{name}' is given twice")
    return names


def known(kind: str, name: str, known: Any) -> Any:
    if name not in known:
        raise UnknownName(kind, name, known)
    return known[name]


def expert_paths(base: str, text: str | None, reserved: list[str]) -> dict[str, str]:
    """Folders by name, from NAME=PATH, a path or hub name alone, or a shipped expert's name."""
    from workbench.models import DEFAULT_EXPERTS, base_source, shipped_experts

    base_source(base)
    shipped = shipped_experts(base)
    if text is None:
        if not shipped:
            raise WorkbenchError(
                f"no experts for base '{base}'", way_out="Give them with --experts NAME=PATH,..."
            )
        return {name: str(shipped[name]) for name in DEFAULT_EXPERTS}
    paths: dict[str, str] = {}
    for word in names("expert", text):
        name, equals, path = word.partition("=")
        if not equals:
            name, path = (word, word) if word in shipped else (Path(word).name, word)
            if shipped and path not in shipped and "/" not in path and not Path(path).exists():
                raise UnknownName("expert", word, shipped)
        path = str(shipped.get(path, path))
        if not name or not path:
            raise WorkbenchError(f"--experts has '{word}'", "NAME=PATH")
        if name in reserved:
            raise WorkbenchError(f"an expert cannot be called '{name}'", "the name has a meaning already")
        if name in paths:
            raise WorkbenchError(f"two experts are called '{name}'", "one name each")
        same = [other for other, known in paths.items() if _resolved(known) == _resolved(path)]
        if same:
            raise WorkbenchError(f"experts '{same[0]}' and '{name}' are the same folder", path)
        paths[name] = path
    return paths


def _resolved(path: str) -> Path:
    return Path(path).expanduser().resolve()


def positive(numbers: Mapping[str, int | None]) -> None:
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise WorkbenchError(f"{option} {number}", "a whole number of at least 1")


def weights(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError as error:
        raise WorkbenchError(f"--weights '{text}'", "numbers with commas between, such as 1,0.5") from error


def utf8(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WorkbenchError(
            f"{what} is not UTF-8", f"character {error.start + 1} is a stray byte"
        ) from error


def output(folder: Path, mark: str) -> None:
    """Makes a folder for a report; raises WorkbenchError for one with files in it, but none called `mark`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(entry.name for entry in folder.iterdir())
        if found and mark not in found:
            raise WorkbenchError(
                f"{folder}: not a report of this kind, and not empty ({found[0]})",
                way_out="Give an empty or new folder with --output.",
            )
        (folder / f"{mark}.part").touch()
    except OSError as error:
        raise WorkbenchError(f"{folder}: cannot be written to", error.strerror or str(error)) from error
