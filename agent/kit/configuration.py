# SPDX-License-Identifier: Apache-2.0
"""The configuration of the running process: what it is, reloading it, setting keys until the end.

The state directory keeps the last good document and the random id of this installation, by which we know our own
sandboxes. Never: applies half of a change. Listeners are called after everything has been checked.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from agent.config.check import CheckedConfiguration
from agent.config.diff import ReloadPlan, plan_reload
from agent.config.document import Configuration
from agent.config.effective import HostFacts
from agent.config.reference import as_document, as_yaml
from agent.config.sources import FurtherCheck, Loaded, Sources, check, read
from agent.drivers.atomic_files import write_file
from agent.model.finding import Advice

log = structlog.get_logger(plane="daemon")

LAST_GOOD = "config.last.yaml"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def write_atomically(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all, also after a power cut. The text of a failure names the file."""
    try:
        write_file(path, content)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error


class RunningConfiguration:
    """`listeners` hear each new configuration with the plan that led to it."""

    def __init__(
        self,
        sources: Sources,
        facts: HostFacts,
        loaded: Loaded,
        checked: CheckedConfiguration,
        further: Sequence[FurtherCheck] = (),
    ) -> None:
        self._sources = sources
        self._loaded = loaded
        self._further = further
        self._api_values: dict[str, str] = {}
        self._facts = facts
        self._checked = checked
        if checked.configuration is None:
            raise ValueError("only a configuration that checked without findings can run")
        self.configuration = checked.configuration
        """What is in force."""
        self.listeners: list[Callable[[Configuration, ReloadPlan], None]] = []

    def files(self) -> tuple[Path, ...]:
        """Those it was read from, the later counts more."""
        return self._loaded.files

    def tell_warnings(self) -> None:
        """What an earlier version read or wrote otherwise. Once, at the start; later `kepd config check` tells it."""
        for warning in self._loaded.warnings:
            log.warning("configuration_of_former_version", finding=str(warning), is_answer=True)

    async def advice(self) -> list[Advice]:
        """A note: what lies there may be meant for another kepd alone."""
        return [
            Advice(
                subject="kepd configuration",
                found="as an earlier version has it",
                wanted="",
                text=str(one),
                is_note=True,
            )
            for one in self._loaded.warnings
        ]

    def current(self) -> CheckedConfiguration:
        return CheckedConfiguration(self.configuration, (), self._checked.origins)

    def reload(self) -> CheckedConfiguration | ReloadPlan:
        """Read all sources again. Keys set through the API are given up: the sources say how it shall be."""
        loaded = read(self._sources)
        outcome = self._take_over(check(loaded, self._facts, further=self._further), dry_run=False)
        if isinstance(outcome, ReloadPlan):
            self._loaded, self._api_values = loaded, {}
        return outcome

    def set_values(self, values: Mapping[str, str], *, dry_run: bool) -> CheckedConfiguration | ReloadPlan:
        """Set keys on top of what was last read. Keys that need a restart refuse the whole call."""
        api_values = {**self._api_values, **values}
        checked = check(self._loaded, self._facts, api_values, self._further)
        outcome = self._take_over(checked, dry_run=dry_run, refuse_restart=True)
        refused = not isinstance(outcome, ReloadPlan) or bool(outcome.waiting_for_restart)
        if not refused and not dry_run:
            self._api_values = api_values
        return outcome

    def keep_last_good(self) -> None:
        path = Path(self.configuration.node.state_directory) / LAST_GOOD
        try:
            write_atomically(path, as_yaml(as_document(self.configuration)).encode())
        except OSError as error:
            log.warning("config_copy_failed", path=str(path), error=error.strerror)

    def _take_over(
        self, checked: CheckedConfiguration, *, dry_run: bool, refuse_restart: bool = False
    ) -> CheckedConfiguration | ReloadPlan:
        if checked.configuration is None:
            for finding in checked.findings:
                log.error("config_reload_refused", finding=str(finding), is_answer=True)
            return checked
        plan = plan_reload(self.configuration, checked.configuration)
        if dry_run or (refuse_restart and plan.waiting_for_restart):
            return plan
        self._checked = checked
        self.configuration = plan.configuration
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


WELL_FORMED = re.compile(r"[0-9a-f]{32}\Z")


def instance_id(state_directory: Path) -> str:
    """The id, made at the first start. One that is damaged is made anew: better no claim than a wrong one."""
    path = state_directory / "instance"
    try:
        known = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        known = ""
    if WELL_FORMED.match(known):
        return known
    fresh = secrets.token_hex(16)
    write_atomically(path, f"{fresh}\n".encode())
    return fresh
