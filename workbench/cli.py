"""Commands, options, printing: the one place that prints and that catches WorkbenchError (exit status 2)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from workbench import options, terminal
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.decode.engine import Engine
    from workbench.experts.lora import Expert

app = typer.Typer(
    help="Compose LoRA experts of one language model without training again, and compare the ways to do it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)

SMALL = 10_000_000  # parameters; on a CPU, the threads of a smaller model mostly wait for each other


class Wandb(StrEnum):
    off = "off"
    offline = "offline"
    online = "online"


BaseOption = Annotated[
    str, typer.Option("--base", help="The shipped 'mini', a folder with a causal LM, or a hub name.")
]
ExpertsOption = Annotated[
    str | None,
    typer.Option(
        "--experts",
        help="NAME=PATH,...: PEFT LoRA folders or hub names; shipped experts by their name alone.",
        show_default="the shipped ones",
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", help="λ of each expert, in their order: 1,0.5", show_default="all 1"),
]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the problems' draw and of sampling.")
]


@app.callback(invoke_without_command=True)
def workbench(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if show_version:
        out.print(version("compose-workbench"), highlight=False)
        raise typer.Exit


@app.command()
def compare(
    base: BaseOption = "mini",
    experts: ExpertsOption = None,
    methods: Annotated[
        str, typer.Option(help="Composition methods, see `workbench list`.")
    ] = "logit,task_arith",
    weights: WeightsOption = None,
    tasks: Annotated[str, typer.Option(help="Tasks, see `workbench list`.")] = "letters,mini_math,mini_code",
    limit: Annotated[int | None, typer.Option(help="Problems of each task.", show_default="all")] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts decoded at once.")] = 64,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="The longest answer, in tokens.", show_default="the task's own")
    ] = None,
    temperature: TemperatureOption = 0.0,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The run folder; an unfinished run in it goes on.", show_default="reports/compare-<hash>"
        ),
    ] = None,
    wandb: Annotated[Wandb, typer.Option(help="Log the result to Weights & Biases.")] = Wandb.off,
) -> None:
    """Evaluate the base, each expert alone and each composition METHOD on TASKS.

    Writes a run folder (samples.jsonl, results.json, report.md, report.html) and prints a table.
    The same command again goes on where it was stopped, and redoes nothing.
    """
    from workbench.evaluate.tasks import TASKS
    from workbench.report import page
    from workbench.report import wandb as wandb_report

    options.positive({"--limit": limit, "--batch-size": batch_size, "--max-new-tokens": max_new_tokens})
    wandb_report.check(wandb.value)
    names = options.names("method", methods)
    chosen_tasks = [options.known("task", name, TASKS) for name in options.names("task", tasks)]
    paths = options.expert_paths(base, experts, reserved=["base", *names])
    lambdas = options.weights(weights)

    from workbench.methods import check

    for name in names:
        check(name, list(paths), lambdas)

    from workbench.decode.sampling import Sampling
    from workbench.evaluate import comparison, harness

    sampling = Sampling(temperature)
    engine, loaded = _open(base, paths)
    items = harness.items(
        chosen_tasks,
        experts=[Path(path).name for path in paths.values()],
        limit=limit,
        seed=seed,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
    )
    engine.check([item.request for item in items])
    plans = comparison.plans(list(paths), names, lambdas)
    config = comparison.config(
        base=engine.base,
        experts=loaded,
        methods=names,
        weights=lambdas,
        items=items,
        settings={"limit": limit, "seed": seed, "temperature": temperature, "max_new_tokens": max_new_tokens},
        batch_size=batch_size,
        command=["workbench", *sys.argv[1:]],
    )
    folder_path = output or Path("reports") / f"compare-{comparison.identity(config)[:8]}"

    from workbench.evaluate.records import RunFolder
    from workbench.report.summary import results_json, summarize

    with RunFolder(folder_path, config) as folder:
        before = len(folder.samples)
        try:
            with terminal.samples_progress(err, len(items) * len(plans)) as advance:
                samples = harness.run(engine, plans, items, folder, batch_size, advance, names)
        except KeyboardInterrupt:
            err.print("stopped; the same command goes on from here", highlight=False)
            raise typer.Exit(130) from None
        metrics = {task.name: task.metric for task in chosen_tasks}
        rows = summarize(samples, metrics, list(plans))
        folder.write("results.json", results_json(rows))
        folder.write("report.md", page.write_markdown(rows, folder.config))
        folder.write("report.html", page.write_page(rows, samples, folder.config))
        Console(width=max(out.width, 100)).print(terminal.scores(rows, compositions=names))  # cut nothing
        kept = f" ({before} of them from before)" if before else ""
        where = f"{len(samples)} samples{kept} and the report: {folder_path}/report.html"
        out.print(where, highlight=False, soft_wrap=True, markup=False)
        wandb_report.log_run(wandb.value, rows, samples, folder.config, folder.path)
        if wandb is Wandb.offline:
            out.print("W&B: logged offline; `wandb sync` sends the run in the folder's wandb/", markup=False)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    method: Annotated[
        str, typer.Option(help="A composition method, 'base', or the name of one of the experts.")
    ] = "logit",
    base: BaseOption = "mini",
    experts: ExpertsOption = None,
    weights: WeightsOption = None,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer, in tokens.")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")
    ] = None,
    temperature: TemperatureOption = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens that hold this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many likeliest tokens; 0: all.")] = 0,
    seed: SeedOption = 0,
) -> None:
    """Print what the composed model answers to PROMPT."""
    from workbench.methods import METHODS, check_weights

    paths = options.expert_paths(base, experts, reserved=["base", *METHODS])
    lambdas = options.weights(weights)
    options.known("method", method, {**METHODS, **dict.fromkeys(["base", *paths])})
    check_weights(list(paths), lambdas)
    options.utf8("the prompt", prompt)

    from workbench.decode.engine import Request
    from workbench.decode.sampling import Sampling
    from workbench.evaluate import comparison

    options.positive({"--max-new-tokens": max_new_tokens})
    if "" in (stop or ()):
        raise WorkbenchError("--stop is empty", "text that ends the answer")
    sampling = Sampling(temperature, top_p, top_k)
    engine, _ = _open(base, paths)
    request = Request("prompt", prompt, max_new_tokens, tuple(stop or ()), sampling, seed)
    plan = comparison.plans(list(paths), [] if method in ("base", *paths) else [method], lambdas)[method]
    [[completion]] = engine.generate(plan, [request], batch_size=1)
    print(completion.text)
    why = {"eos": "end of sequence", "stop": "a stop string", "length": "the length limit"}[completion.finish]
    err.print(f"[dim]{completion.tokens} tokens, ended by {why}[/dim]", highlight=False)


@app.command()
def verify(
    base: BaseOption = "mini",
    experts: ExpertsOption = None,
    tasks: Annotated[
        str, typer.Option(help="Tasks whose prompts are asked, see `workbench list`.")
    ] = "letters,letters_open,mini_math,mini_code",
    limit: Annotated[int, typer.Option(help="Problems of each task.")] = 12,
    batch_size: Annotated[int, typer.Option(help="Answers in one forward pass.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the problems' draw.")] = 0,
    output: Annotated[Path, typer.Option(help="Where the report goes; an older one is replaced.")] = Path(
        "reports/verify"
    ),
) -> None:
    """Check the theorems that say when composition is right; exit status 1 if one does not hold.

    With no options: on small exact models and on the shipped one. With your own experts: what the theorems
    say about them, and which pairs are safe to compose.
    """
    from workbench.evaluate.records import write_file
    from workbench.evaluate.tasks import TASKS
    from workbench.models import SHIPPED
    from workbench.report import verify as report

    options.positive({"--limit": limit, "--batch-size": batch_size})
    chosen = [options.known("task", name, TASKS) for name in options.names("task", tasks)]
    paths = options.expert_paths(base, experts, reserved=["base"])
    options.output(output, "results.json")
    engine, loaded = _open(base, paths)
    engine.base.model.float()  # the statements are about float32

    from workbench import theory
    from workbench.theory.subject import Subject, ask, shipped_subject

    asked = ask(chosen, [Path(path).name for path in paths.values()], limit, seed)
    engine.check([item.request for item in asked])
    subject = Subject(engine.base, tuple(loaded), asked, batch_size)
    shipped = shipped_subject(engine.base, batch_size) if base in SHIPPED and experts is None else None
    with terminal.checks_progress(err, len(theory.CHECKS)) as on_check:
        checks = list(theory.run(subject, shipped, on_check))
    settings = {
        "base": engine.base.sha256,
        **{f"expert {expert.name}": expert.sha256 for expert in loaded},
        "tasks": tasks,
        "limit": limit,
        "seed": seed,
    }
    write_file(output / "results.json", report.results_json(checks, settings))
    write_file(output / "report.html", report.write_page(checks, settings))
    Console(width=max(out.width, 120)).print(terminal.statements(checks))
    for _, _, finding in checks:
        for sentence in finding.words:
            out.print(sentence, highlight=False, markup=False, soft_wrap=True)
    line = f"{report.sentence(checks)} The report: {output}/report.html"
    out.print(line, highlight=False, soft_wrap=True, markup=False)
    if report.failures(checks):
        raise typer.Exit(1)


@app.command("list")
def list_() -> None:
    """List methods, tasks, bases and shipped experts."""
    from workbench.evaluate.tasks import TASKS
    from workbench.methods import METHODS
    from workbench.models import SHIPPED, shipped_experts

    def section(title: str, rows: Iterable[tuple[str, str]]) -> None:
        out.print(f"[bold]{title}[/bold]")
        for name, text in rows:
            out.print(f"  {name:<12} {escape(text)}", highlight=False, soft_wrap=True)

    def first_line(thing: object) -> str:
        return (type(thing).__doc__ or "").strip().splitlines()[0]

    section("methods", ((name, first_line(method)) for name, method in METHODS.items()))
    section("tasks", ((name, task.about) for name, task in TASKS.items()))
    section("bases", ((name, f"experts: {', '.join(shipped_experts(name))}") for name in SHIPPED))
    out.print("  or a folder with a causal LM, or a hub name", highlight=False)


def main() -> None:
    """Runs a command; a user's mistake ends in one line on stderr and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without λ or – still gets its table
    try:
        app()
    except WorkbenchError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _open(base: str, paths: dict[str, str]) -> tuple[Engine, list[Expert]]:
    """Everything read and checked, nothing run."""
    with err.status("reading torch and transformers"):
        import huggingface_hub.utils
        import torch
        import transformers

        from workbench.decode.branches import check_experts
        from workbench.decode.engine import Engine
        from workbench.experts.bank import ExpertBank
        from workbench.experts.lora import read_expert
        from workbench.models import open_base

    huggingface_hub.utils.logging.set_verbosity_error()  # a mistake is one line, not their retries
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    experts = [read_expert(name, path) for name, path in paths.items()]
    with err.status(f"opening base '{escape(base)}'"):
        opened = open_base(base)
    if opened.model.device.type == "cpu" and opened.model.num_parameters() < SMALL:
        torch.set_num_threads(1)
    check_experts(opened, experts)
    return Engine(opened, ExpertBank(opened.model, experts)), experts
