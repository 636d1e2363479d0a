# SPDX-License-Identifier: Apache-2.0
"""`kepd`: run the daemon, look at its configuration.

Owns: flags, exit codes, signals. Imports what a command needs when it runs, so that `kepd config check` is quick.
Never: knows planes; wiring.py does.
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
from agent.model.exit_codes import BAD_CONFIGURATION, CONFLICT, FAILURE

if TYPE_CHECKING:
    from agent.config.sources import Sources
    from agent.daemon.configuration import RunningConfiguration
    from agent.daemon.logs import Levels
    from agent.daemon.wiring import Daemon

__all__ = ["main"]

CONTEXT = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, message="kepd %(version)s")
def main() -> None:
    """The node side of Kubernetes enhancements, as one daemon per node."""


@main.command()
@configuration_flags
@click.option("-v", "verbosity", type=int, help="Log level 0 to 9, as klog counts [2].")
@click.option("--vmodule", metavar="PLANE=N,…", help="Log levels of single planes.")
@click.option("--log-format", help="auto, json, logfmt or console [auto].")
@click.option("--metrics-compat", metavar="FAMILY,…", help="Metrics that also appear under the names of kube-proxy.")
def run(
    *,
    file: Path | None,
    settings: tuple[str, ...],
    planes: str | None,
    verbosity: int | None,
    vmodule: str | None,
    log_format: str | None,
    metrics_compat: str | None,
) -> None:
    """Run the daemon until SIGTERM. SIGHUP reloads the configuration; a second SIGTERM hurries the end."""
    from agent.config.sources import Sources
    from agent.daemon.flags import telemetry_flags

    flags = telemetry_flags(verbosity, vmodule, log_format, metrics_compat)
    sources = Sources(file=file, environment=os.environ, settings=settings, flags=flags, planes=planes)
    sys.exit(start(sources))


def start(sources: "Sources") -> int:
    """Read the configuration, wire, run. The exit code."""
    import time

    from agent.api.socket_path import PathTaken
    from agent.config.sources import host_facts, load
    from agent.daemon.configuration import RunningConfiguration
    from agent.daemon.logs import Levels, configure_logs

    facts = host_facts(os.environ)
    checked = load(sources, facts)
    if checked.configuration is None:
        for finding in checked.findings:
            click.echo(str(finding), err=True)
        return BAD_CONFIGURATION
    telemetry = checked.configuration.telemetry
    levels = Levels(telemetry.verbosity, telemetry.vmodule)
    configure_logs(levels, telemetry.log_format, time.monotonic)
    running = RunningConfiguration(sources, facts, checked, checked.configuration)
    try:
        asyncio.run(serve(running, levels))
    except PathTaken as error:
        click.echo(f"kepd: {error}", err=True)
        return CONFLICT
    except OSError as error:
        click.echo(f"kepd: {error}", err=True)
        return FAILURE
    return 0


async def serve(running: "RunningConfiguration", levels: "Levels") -> None:
    """The daemon, from wiring to the end."""
    from agent.daemon.tree import run_tree
    from agent.daemon.wiring import wire

    daemon = wire(running, levels, os.environ)
    stop, hurry = asyncio.Event(), asyncio.Event()
    listen_to_signals(daemon, stop, hurry)
    running.keep_last_good()
    try:
        await run_tree(daemon.units, daemon.clock, stop, hurry)
    finally:
        await daemon.close()


def listen_to_signals(daemon: "Daemon", stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """TERM and INT end, a second one hurries, HUP reloads."""
    import structlog

    log = structlog.get_logger(plane="daemon")
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stop.is_set():
            hurry.set()
            return
        log.info("daemon_stopping", allowed_s=daemon.longest_stop_s, v=0)
        daemon.manager.stopping()
        daemon.manager.extend_timeout(daemon.longest_stop_s)
        stop.set()

    def reload() -> None:
        daemon.manager.reloading()
        daemon.configuration.reload()
        daemon.manager.ready(daemon.board.summary())

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGINT, end)
    loop.add_signal_handler(signal.SIGHUP, reload)


main.add_command(config_commands)
