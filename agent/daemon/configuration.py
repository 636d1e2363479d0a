# SPDX-License-Identifier: Apache-2.0
"""The configuration of the running process: what it is, reloading it, setting keys until the end.

Owns: the current document, its origins, the keys set through the API, and the copy of the last good document in the
state directory.
Never: applies half of a change. Listeners are told after everything has been checked.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from agent.config.check import Checked
from agent.config.diff import ReloadPlan, plan_reload
from agent.config.document import Configuration
from agent.config.effective import HostFacts
from agent.config.reference import as_document, as_yaml
from agent.config.sources import Sources, load

__all__ = ["RunningConfiguration", "write_atomically"]

log = structlog.get_logger(plane="daemon")

LAST_GOOD = "config.last.yaml"


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file that is there whole or not at all, also after a power cut."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(handle, mode)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


class RunningConfiguration:
    """`listeners` hear each new configuration with the plan that led to it."""

    def __init__(self, sources: Sources, facts: HostFacts, checked: Checked, configuration: Configuration) -> None:
        self._sources = sources
        self._facts = facts
        self._checked = checked
        self._configuration = configuration
        self.listeners: list[Callable[[Configuration, ReloadPlan], None]] = []

    @property
    def configuration(self) -> Configuration:
        """What is in force."""
        return self._configuration

    def current(self) -> Checked:
        """What is in force, with origins."""
        return Checked(self._configuration, (), self._checked.origins)

    def reload(self) -> Checked | ReloadPlan:
        """Read all sources again. Keys set through the API are given up: the sources say how it shall be."""
        return self._take_over(replace(self._sources, api_values={}), dry_run=False)

    def set_values(self, values: Mapping[str, str], *, dry_run: bool) -> Checked | ReloadPlan:
        """Set keys on top of all sources. Keys that need a restart refuse the whole call."""
        sources = replace(self._sources, api_values={**self._sources.api_values, **values})
        return self._take_over(sources, dry_run=dry_run, refuse_restart=True)

    def keep_last_good(self) -> None:
        """Write the document in force where a later start can compare with it."""
        path = Path(self._configuration.node.state_directory) / LAST_GOOD
        try:
            write_atomically(path, as_yaml(as_document(self._configuration)).encode())
        except OSError as error:
            log.warning("config_copy_failed", path=str(path), error=error.strerror)

    def _take_over(self, sources: Sources, *, dry_run: bool, refuse_restart: bool = False) -> Checked | ReloadPlan:
        checked = load(sources, self._facts)
        if checked.configuration is None:
            for finding in checked.findings:
                log.error("config_reload_refused", finding=str(finding))
            return checked
        plan = plan_reload(self._configuration, checked.configuration)
        if dry_run or (refuse_restart and plan.waiting_for_restart):
            return plan
        self._sources = sources
        self._checked = checked
        self._configuration = plan.configuration
        log.info(
            "config_reloaded",
            applied=",".join(change.path for change in plan.applied),
            waiting_for_restart=",".join(change.path for change in plan.waiting_for_restart),
            v=0,
        )
        for listener in self.listeners:
            listener(plan.configuration, plan)
        self.keep_last_good()
        return plan
