# SPDX-License-Identifier: Apache-2.0
"""Pulls on a terminal: one bar each; plain lines where there is no terminal. rich is imported only for a terminal."""

import sys
from types import TracebackType
from typing import Self

import click

from agent.cli.session import Session
from agent.cli.terminal import unfiltered
from agent.kinds.amounts import rate, size, span
from agent.kinds.images.pulls import stage_line
from agent.kinds.own_shape import fields_of_message
from agent.model.finding import printable
from agent.wire.kepd.v1 import image_pb2


class ProgressLines:
    def __init__(self, session: Session) -> None:
        self._bars = _Bars(session) if sys.stdout.isatty() else None
        self._told: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.progress.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.progress.stop()

    def show(self, pull: image_pb2.Pull) -> None:
        """A new state of one pull. Without a terminal a line is printed when the stage changes."""
        if self._bars is not None:
            self._bars.show(pull)
            return
        if pull.stage == "failed":
            # The outcome says why, once.
            return
        line = stage_line(fields_of_message(pull))
        if self._told.get(pull.id) != line:
            self._told[pull.id] = line
            click.echo(f"{pull.image}: {line}", err=True)


class _Bars:
    def __init__(self, session: Session) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn

        console = Console(file=unfiltered(), no_color=session.color == "never")
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def show(self, pull: image_pb2.Pull) -> None:
        if pull.id not in self._tasks:
            self._tasks[pull.id] = self.progress.add_task(printable(pull.image), total=None, text="")
        parts = [pull.stage if pull.stage == "failed" else stage_line(fields_of_message(pull))]
        if pull.stage == "downloading":
            eta = f"{'~' if pull.is_eta_rough else ''}{span(pull.eta_seconds)} left" if pull.eta_seconds else ""
            parts += [f"{size(pull.done_bytes)} of {size(pull.total_bytes)}", rate(pull.rate_bytes_per_second), eta]
        done = pull.stage == "done"
        self.progress.update(
            self._tasks[pull.id],
            total=pull.total_bytes or None,
            completed=pull.total_bytes if done else pull.done_bytes,
            text=printable("  ".join(part for part in parts if part)),
        )
