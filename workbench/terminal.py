"""What the commands show on a terminal: tables, and progress with rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from workbench.report.summary import Row
    from workbench.report.verify import Checks


@contextmanager
def samples_progress(console: Console, total: int) -> Iterator[Callable[[str, int], None]]:
    """Hears of (method, how many samples more)."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, rate="")

        def advance(method: str, count: int) -> None:
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            rate = f"{speed:.0f} samples/s" if speed else ""
            progress.update(bar, advance=count, description=escape(method), rate=rate)

        yield advance


@contextmanager
def checks_progress(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Hears what is checked next."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, completed=-1)
        yield lambda about: progress.update(bar, advance=1, description=escape(about))


def statements(checks: Checks) -> Table:
    """Every statement with its quantity, what was measured, and whether it holds."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("statement", ratio=4, overflow="fold")
    table.add_column("quantity", ratio=4, overflow="fold")
    for name in ("measured", "tolerance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for _, about, finding in checks:
        table.add_row()
        table.add_row(f"[bold]{escape(about)}[/bold]")
        for row in finding.rows:
            table.add_row(
                escape(row.statement) + (" [dim](broken on purpose)[/dim]" if row.broken else ""),
                escape(row.quantity),
                f"{row.value:.3g}",
                row.tolerance,
                row.verdict,
                style="red" if row.holds is False else None,
            )
    table.add_row()
    return table


def scores(rows: Sequence[Row], compositions: Sequence[str]) -> Table:
    """Each task's methods, the composed ones in bold."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("task", "metric", "method"):
        table.add_column(name, no_wrap=True)
    overlap = any(row.overlap for row in rows)
    for name in ("score", "95 % CI", "n", "eos", "stop", "length", *(["overlap"] if overlap else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for before, row in zip([None, *rows], rows, strict=False):
        first = before is None or row.task != before.task
        if first and before is not None:
            table.add_row()
        table.add_row(
            escape(row.task) if first else "",
            row.metric if first else "",
            escape(row.method),
            f"{100 * row.score:.1f}",
            f"{100 * row.low:.1f}–{100 * row.high:.1f}",
            str(row.n),
            *(str(row.ended.get(why, 0)) for why in ("eos", "stop", "length")),
            *([f"{100 * row.overlap['share']:.1f} %" if row.overlap else ""] if overlap else []),
            style="bold" if row.method in compositions else None,
        )
    return table
