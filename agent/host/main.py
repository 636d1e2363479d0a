# SPDX-License-Identifier: Apache-2.0
"""`kepd`: run the daemon, look at its configuration.

Imports what a command needs when it runs, so that `kepd config check` is quick.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent import __version__
from agent.config.commands import config_commands, configuration_flags
from agent.host.backup.command import backup, restore
from agent.host.migrating import migrate
from agent.host.setup.command import setup
from agent.host.upkeep import upkeep_commands
from agent.model.exit_codes import BAD_CONFIGURATION, CONFLICT, FAILURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.config.sources import FurtherCheck, Sources
    from agent.host.process import Process
    from agent.kit.configuration import RunningConfiguration
    from agent.kit.log_output import LogOutput
    from agent.kit.logs import Levels

CONTEXT = {"help_option_names": ["-h", "--help"]}
TURN_S = 0.001


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, message="kepd %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """The node side of Kubernetes enhancements, as one daemon per node."""
    ctx.obj = _plane_checks


def _plane_checks() -> "Sequence[FurtherCheck]":
    """What the planes say about values; imported only by the commands that ask."""
    from agent.host.plane_checks import PLANE_CHECKS

    return PLANE_CHECKS


@main.command()
@configuration_flags
@click.option(
    "--manifests",
    type=click.Path(path_type=Path, readable=False),
    metavar="DIR",
    help="Run these manifests in the foreground, with a state of their own; Ctrl-C ends their pods and leaves nothing.",
)
@click.option("-v", "verbosity", type=int, help="Log level 0 to 9, as in klog [2].")
@click.option("--vmodule", metavar="PLANE=N,…", help="Log levels of single planes.")
@click.option("--log-format", help="auto, json, logfmt or console [auto].")
@click.option(
    "--metrics-compat", metavar="FAMILY,…", help="Also export metrics under these programs' names, such as kube-proxy."
)
def run(
    *,
    file: Path | None,
    settings: tuple[str, ...],
    planes: str | None,
    manifests: Path | None,
    verbosity: int | None,
    vmodule: str | None,
    log_format: str | None,
    metrics_compat: str | None,
) -> None:
    """Run the daemon until SIGTERM. SIGHUP reloads the configuration; a second SIGTERM skips the remaining grace.

    Pods run on without it. With --manifests they do not: that is for a look, without a unit and without the node's
    configuration. It uses the containerd that runs, and its logs stand in the terminal."""
    from agent.config.sources import Sources, telemetry_flags
    from agent.host.first_process import leave_first_place
    from agent.kit.log_output import hold_standard_places
    from agent.kit.memory import forbid_core_files, share_heaps

    hold_standard_places()
    leave_first_place()
    forbid_core_files()
    share_heaps()
    flags = telemetry_flags(verbosity, vmodule, log_format, metrics_compat)
    sources = Sources(file=file, environment=os.environ, settings=settings, flags=flags, planes=planes)
    if manifests is not None:
        from agent.host.by_hand import run_by_hand

        sys.exit(run_by_hand(manifests, sources, _plane_checks(), lambda these: _start(these, ends_pods=True)))
    sys.exit(_start(sources))


def _start(sources: "Sources", *, ends_pods: bool = False) -> int:
    # Until there is a configuration to reload, a reload is nothing to die of.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # structlog draws tracebacks with rich where it finds it. No log of ours has such, and rich is a tenth of the start.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import time

    from agent.api.socket_path import PathTaken
    from agent.config.sources import check, host_facts, read
    from agent.host.plane_checks import PLANE_CHECKS
    from agent.kit.configuration import RunningConfiguration
    from agent.kit.log_output import LogOutput
    from agent.kit.logs import Levels, configure_logs

    out = LogOutput()
    facts = host_facts(os.environ)
    loaded = read(sources)
    checked = check(loaded, facts, further=PLANE_CHECKS)
    if checked.configuration is None:
        for finding in (*loaded.warnings, *checked.findings):
            out.write(f"{finding}\n")
        return BAD_CONFIGURATION
    telemetry = checked.configuration.telemetry
    levels = Levels(telemetry.verbosity, telemetry.vmodule)
    configure_logs(levels, telemetry.log_format, time.monotonic, out)
    running = RunningConfiguration(sources, facts, loaded, checked, PLANE_CHECKS)
    # Threads that compute, such as those that read manifests, give way to the loop this soon.
    sys.setswitchinterval(TURN_S)
    try:
        asyncio.run(_serve(running, levels, out, ends_pods=ends_pods))
    except PathTaken as error:
        out.write(f"kepd: {error}\n")
        return CONFLICT
    except OSError as error:
        out.write(f"kepd: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}\n")
        return FAILURE
    return 0


async def _serve(running: "RunningConfiguration", levels: "Levels", out: "LogOutput", *, ends_pods: bool) -> None:
    from agent.kit.memory import exempt_what_lives, large_work

    stop, hurry = asyncio.Event(), asyncio.Event()
    ending = EndSignals(stop, hurry)
    with large_work():
        from agent.drivers.state_files.driver import sweep_state
        from agent.host.compose import compose
        from agent.host.tree import run_tree

        daemon = compose(running, levels, os.environ, ends_pods=ends_pods)
    daemon.metrics.lost_log_lines = lambda: out.lost_lines
    ending.daemon = daemon
    sweep_state(Path(running.configuration.node.state_directory))
    running.keep_last_good()
    running.tell_warnings()
    exempt_what_lives()
    try:
        await run_tree(daemon.units, daemon.clock, stop, hurry)
    finally:
        await daemon.close()


class EndSignals:
    """TERM and INT end, a second one hurries, HUP reloads. They are heard from before wiring on."""

    def __init__(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        self._stop = stop
        self._hurry = hurry
        self.daemon: Process | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end)
        loop.add_signal_handler(signal.SIGINT, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _end(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
            return
        # Before anything is said of it, which may fail.
        self._stop.set()
        if self.daemon is not None:
            self.daemon.say_stopping()

    def _reload(self) -> None:
        if self.daemon is not None:
            self.daemon.manager.reloading()
            self.daemon.running.reload()
            self.daemon.lifecycle.reloaded()


config_commands.add_command(migrate)
main.add_command(config_commands)
main.add_command(setup)
main.add_command(backup)
main.add_command(restore)
for upkeep in upkeep_commands:
    main.add_command(upkeep)
