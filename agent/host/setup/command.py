# SPDX-License-Identifier: Apache-2.0
"""`kepd setup`: shows or carries out what makes this node ready, and asks before it changes what exists."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from agent.model.exit_codes import CONFLICT, FAILURE, NOT_PERMITTED
from agent.model.finding import printable

if TYPE_CHECKING:
    from agent.host.setup.node_files import NodeFiles
    from agent.host.setup.plan import NodeFound, Step, WriteFile

# More than the unit gives kepd for its start.
PROGRAM_SECONDS = 150
Run = Callable[[Sequence[str]], None]


def run_program(words: Sequence[str]) -> None:
    """Says what the program said, should it fail."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=PROGRAM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(0, f"did not end within {PROGRAM_SECONDS} s", words[0]) from None
    if done.returncode:
        raise OSError(0, f"ended with {done.returncode}: {printable(done.stderr.strip())[-500:]}", " ".join(words))


class Setup:
    """One look at a node and what follows from it."""

    def __init__(self, files: "NodeFiles", look: "Callable[[], NodeFound]", run: Run = run_program) -> None:
        self._files = files
        self._look = look
        self._run = run

    def work(
        self, *, is_dry: bool, is_agreed: bool, is_terminal: bool, is_starting: bool = False, is_with_door: bool = False
    ) -> int:
        from msgspec.structs import replace

        from agent.host.setup.plan import NEXT, NEXT_WHEN_STARTED, has_names, plan_setup, starts

        facts = replace(self._look(), is_with_door=is_with_door)
        plan = plan_setup(facts)
        for text in plan.obstacles:
            click.echo(f"kepd: {printable(text)}", err=True)
        if plan.obstacles:
            click.echo("kepd: setup changed nothing", err=True)
            return CONFLICT
        for text in plan.notes:
            click.echo(f"note: {printable(text)}", err=True)
        steps = (*plan.steps, *starts(plan, with_names=has_names(facts))) if is_starting else plan.steps
        if is_dry:
            for step in steps:
                _say(f"would {told(step)}", step)
        elif not is_agreed and not _is_agreed(plan.steps, is_terminal=is_terminal):
            return CONFLICT
        elif not self._carry_out(steps):
            return FAILURE
        if not plan.steps:
            click.echo(f"nothing to do: {'the rest is in the notes' if plan.notes else 'this node is set up'}")
        click.echo(f"next: {' && '.join(NEXT_WHEN_STARTED if is_starting else NEXT)}")
        return 0

    def _carry_out(self, steps: "Sequence[Step]") -> bool:
        for step in steps:
            try:
                self._do(step)
            except OSError as error:
                reason = error.strerror or str(error)
                click.echo(f"kepd: could not {told(step)}: {printable(reason)}", err=True)
                click.echo("kepd: the steps before it are done; run kepd setup again when this is mended", err=True)
                return False
            click.echo(f"done: {told(step)}")
        return True

    def _do(self, step: "Step") -> None:
        from agent.host.setup.plan import MakeFolder, RunProgram

        if isinstance(step, RunProgram):
            self._run(step.words)
        elif isinstance(step, MakeFolder):
            self._files.make_folder(step)
        else:
            self._files.write(step)


def _is_agreed(steps: "Sequence[Step]", *, is_terminal: bool) -> bool:
    changing = [step for step in steps if step.is_replacing]
    if not changing:
        return True
    for step in changing:
        _say(told(step), step)
    if not is_terminal:
        click.echo(
            "kepd: this changes what exists, and there is no terminal to ask at; expected --yes to agree, or "
            "--dry-run to see every step. Nothing was changed",
            err=True,
        )
        return False
    if click.confirm("Change what exists?"):
        return True
    click.echo("nothing was changed")
    return False


def told(step: "Step") -> str:
    """`write /etc/x (why)`."""
    from agent.host.setup.plan import MakeFolder, RunProgram

    if isinstance(step, RunProgram):
        return f"run {' '.join(step.words)} ({step.why})"
    verb = "make directory" if isinstance(step, MakeFolder) else "replace" if step.is_replacing else "write"
    return f"{verb} {step.path} with mode {step.mode:04o}, group {step.group} ({step.why})"


def _say(text: str, step: "Step") -> None:
    from agent.host.setup.plan import WriteFile

    click.echo(text)
    if isinstance(step, WriteFile):
        for line in difference(step):
            click.echo(f"  {printable(line)}")


def difference(step: "WriteFile") -> Iterator[str]:
    from difflib import unified_diff

    before, after = (one.decode(errors="replace").splitlines() for one in (step.before.content, step.content))
    source = step.path if step.is_replacing else "/dev/null"
    yield from unified_diff(before, after, source, step.path, lineterm="")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show the steps, and how files would change.")
@click.option("--yes", is_flag=True, help="Change what exists without asking.")
@click.option("--now", is_flag=True, help="Also enable and start kepd, as systemctl enable --now does.")
@click.option("--door", is_flag=True, help="Open the door for kubectl: Kubernetes' API on 127.0.0.1:10246.")
def setup(*, dry_run: bool, yes: bool, now: bool, door: bool) -> None:
    """Make a bare node ready for pods and Services: directories, a network for pods (a CNI list where there is none),
    one for Services, drop-ins of the unit, kernel settings. Asks before it changes what exists; starts kepd by --now
    alone."""
    import os

    from agent.host.setup.look import look
    from agent.host.setup.node_files import NodeFiles

    # Even to show the steps: who cannot look at everything would see steps that are not needed.
    if os.geteuid() != 0:
        click.echo("kepd: setup looks at what only root may see; expected root, also for --dry-run", err=True)
        sys.exit(NOT_PERMITTED)
    work = Setup(NodeFiles(), look)
    is_terminal = sys.stdin.isatty()
    sys.exit(work.work(is_dry=dry_run, is_agreed=yes, is_terminal=is_terminal, is_starting=now, is_with_door=door))
