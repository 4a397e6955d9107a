"""The child of `sandbox.call`: limits itself, runs the program, sends one line per input.

Runs as a script under `python -s -P -S`, so it imports nothing of the project.
Arguments: the pipe to write to, CPU seconds, MiB of memory. The job is JSON on standard input.
"""

import json
import os
import resource
import sys

PLAIN = (type(None), bool, int, float, str)


def tag(value: object) -> list[object]:
    """`value` in the form that `sandbox.decode` reads; exact base types only."""
    kind = type(value)
    if kind in PLAIN:
        return ["plain", value]
    if kind in (list, tuple, set) and isinstance(value, (list, tuple, set)):
        return [kind.__name__, [tag(item) for item in value]]
    if kind is dict and isinstance(value, dict):
        return ["dict", [[tag(key), tag(item)] for key, item in value.items()]]
    return ["opaque"]


def describe(error: BaseException) -> str:
    """The error in words; its class is the program's own, so asking it may fail too."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return "an error that cannot be described"


def limit(cpu_seconds: int, memory_mib: int) -> None:
    memory = memory_mib << 20
    for what, most in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def main() -> None:
    pipe, cpu_seconds, memory_mib = (int(word) for word in sys.argv[1:4])
    job = json.load(sys.stdin)
    limit(cpu_seconds, memory_mib)
    dumps, write = json.dumps, os.write

    def line(message: dict[str, object]) -> bytes:
        return (dumps(message) + "\n").encode()

    def send(answer: bytes) -> None:
        while answer:
            answer = answer[write(pipe, answer) :]

    names: dict[str, object] = {"__name__": "program"}
    broken = None
    try:
        exec(compile(job["code"], "program.py", "exec"), names)
        function = names[job["entry_point"]]
    except BaseException as error:
        broken = describe(error)
    for arguments in job["inputs"]:
        if broken is not None:
            send(line({"error": broken}))
            continue
        try:
            answer = line({"ok": tag(function(*arguments))})  # type: ignore[operator]
        except BaseException as error:
            answer = line({"error": describe(error)})
        send(answer)
    os._exit(0)


if __name__ == "__main__":
    main()
