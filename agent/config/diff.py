# SPDX-License-Identifier: Apache-2.0
"""What a reload changes: what a running process takes over, and what waits for a restart.

Never: applies anything. A reload is all or nothing: it happens only with a configuration that checked without findings.
"""

import msgspec

from agent.config.check import build
from agent.config.document import Configuration
from agent.config.keys import KeyEntry, all_keys
from agent.model.finding import shown


class KeyChange(msgspec.Struct, frozen=True):
    path: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.old)} -> {shown(self.new)}"


class ReloadPlan(msgspec.Struct, frozen=True):
    """`configuration` is what runs after the reload: the new one, but with old values where a restart is needed."""

    configuration: Configuration
    applied: tuple[KeyChange, ...]
    waiting_for_restart: tuple[KeyChange, ...]


def value_at(configuration: Configuration, entry: KeyEntry) -> object:
    value: object = configuration
    for name in entry.fields:
        value = getattr(value, name)
    return value


def plan_reload(running: Configuration, wanted: Configuration) -> ReloadPlan:
    applied: list[KeyChange] = []
    waiting: list[KeyChange] = []
    values: dict[tuple[str, ...], object] = {}
    for path, entry in all_keys(Configuration).items():
        old, new = value_at(running, entry), value_at(wanted, entry)
        values[entry.fields] = old if entry.key.needs_restart else new
        if old == new:
            continue
        show = entry.key.kind.show
        change = KeyChange(path, show(old), show(new))
        if entry.key.needs_restart:
            waiting.append(change)
        else:
            applied.append(change)
    return ReloadPlan(build(values), tuple(applied), tuple(waiting))
