# SPDX-License-Identifier: Apache-2.0
"""`devices.driver.pools`: which nodes below /dev are devices, their names, and what a container gets of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agent.model.finding import Finding, shown
from agent.model.quantity import QuantityError, parse_quantity
from kepd_devices.cdi.spec import ENV, PERMISSIONS
from kepd_devices.manifest.faults import IDENTIFIER, LONGEST_IDENTIFIER, is_label
from kepd_devices.manifest.slice_faults import LONGEST_VALUE

KEY = "devices.driver.pools"
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
WORDS = ("path", "basename", "name", "index")
# What each node of a group has of its own.
OF_NODE = ("path", "basename")
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)([-+].+)?")
LONGEST_TIMEOUT_S = 3600.0
SHORTEST_PERIOD_S = 1.0


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of a pool."""


class Match(Part, frozen=True, kw_only=True):
    glob: str
    sysfs: dict[str, str] = {}
    group: str = ""


class Node(Part, frozen=True, kw_only=True):
    path: str = "{path}"
    as_: str = msgspec.field(default="", name="as")
    permissions: str = "rw"


class Mount(Part, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    read_only: bool = False


class Command(Part, frozen=True, kw_only=True):
    command: tuple[str, ...]
    timeout: str | int | float = "10s"
    retries: int = 0
    on_failure: Literal["quarantine", "ignore"] = "quarantine"
    per_container: bool = False


class Health(Part, frozen=True, kw_only=True):
    command: tuple[str, ...]
    period: str | int | float = "30s"
    timeout: str | int | float = "10s"


class Shared(Part, frozen=True, kw_only=True):
    max: int


class PoolRule(Part, frozen=True, kw_only=True):
    match: Match
    name: str = "{basename}"
    attributes: dict[str, Any] = {}
    capacity: dict[str, str | int] = {}
    shared: Shared | None = None
    env: dict[str, str] = {}
    parameters: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = (Node(),)
    mounts: tuple[Mount, ...] = ()
    prepare: Command | None = None
    reset: Command | None = None
    health: Health | None = None


def read_rules(given: Sequence[Mapping[str, object]]) -> tuple[list[PoolRule], list[Finding]]:
    rules: list[PoolRule] = []
    findings: list[Finding] = []
    for number, one in enumerate(given):
        place = f"{KEY}[{number}]"
        try:
            rule = msgspec.convert(one, PoolRule)
        except msgspec.ValidationError as error:
            text, _, at = str(error).replace("`", "").partition(" - at $")
            findings.append(Finding("", f"{place}{at}", text[:1].lower() + text[1:]))
            continue
        findings += [Finding("", f"{place}.{path}".rstrip("."), text) for path, text in _faults(rule)]
        rules.append(rule)
    return rules, findings


PLUGIN_RESETS = "devices.plugins.reset"


def read_resets(
    given: Mapping[str, Mapping[str, object]], key: str = PLUGIN_RESETS
) -> tuple[dict[str, Command], list[Finding]]:
    """Commands by resource; `key` is where they stand."""
    commands: dict[str, Command] = {}
    findings: list[Finding] = []
    for resource, one in given.items():
        place = f"{key}.{resource}"
        try:
            command = msgspec.convert(one, Command)
        except msgspec.ValidationError as error:
            findings.append(Finding("", place, str(error).replace("`", "")))
            continue
        findings += [
            Finding("", f"{place}.{at.partition('.')[2]}", text)
            for at, text in _command_faults("reset", command, has_containers=key == PLUGIN_RESETS)
        ]
        commands[resource] = command
    return commands, findings


def _faults(rule: PoolRule) -> Iterator[tuple[str, str]]:
    glob = rule.match.glob
    if not glob.startswith("/dev/") or ".." in glob.split("/") or "**" in glob:
        yield "match.glob", f"{shown(glob)} is not below /dev; expected a pattern such as /dev/ttyUSB*"
    yield from _word_faults(rule)
    for name, value in rule.attributes.items():
        if not IDENTIFIER.fullmatch(name) or len(name) > LONGEST_IDENTIFIER:
            yield f"attributes.{name}", "is no name; expected letters, digits and _, at most 32"
        if why := _wrong_value(value):
            yield f"attributes.{name}", why
    for name, amount in rule.capacity.items():
        try:
            parse_quantity(str(amount))
        except QuantityError as error:
            yield f"capacity.{name}", str(error)
    if rule.shared is not None and not 1 <= rule.shared.max <= 1000:
        yield "shared.max", f"is {rule.shared.max}; expected 1 to 1000"
    for name, value in rule.env.items():
        if not ENV.fullmatch(f"{name}={value}"):
            yield f"env.{name}", "is no variable"
    for number, node in enumerate(rule.nodes):
        if not PERMISSIONS.fullmatch(node.permissions):
            yield f"nodes[{number}].permissions", f"{shown(node.permissions)} is not known; expected letters of rwm"
    for number, mount in enumerate(rule.mounts):
        for key, path in (("hostPath", mount.host_path), ("containerPath", mount.container_path)):
            if not path.startswith("/") or ".." in path.split("/"):
                yield f"mounts[{number}].{key}", f"{shown(path)} is no absolute path without .."
    for what, command in (("prepare", rule.prepare), ("reset", rule.reset)):
        if command is not None:
            yield from _command_faults(what, command)
    if rule.health is not None:
        yield from _health_faults(rule.health)


def _word_faults(rule: PoolRule) -> Iterator[tuple[str, str]]:
    sysfs = sysfs_words(rule)
    for path, text in _texts(rule):
        allowed = [*WORDS, *(sorted(sysfs) if path == "name" else ())]
        for word in words_of(text):
            if word not in allowed:
                known = ", ".join(f"{{{one}}}" for one in allowed)
                yield path, f"{shown('{' + word + '}')} is not known; expected one of {known}"
    group = rule.match.group
    if group and (not words_of(group) or not set(words_of(group)) <= set(sysfs)):
        known = (
            ", ".join(f"{{{one}}}" for one in sorted(sysfs)) or "attributes of the pool with {sysfs: FILE}, in braces"
        )
        yield "match.group", f"{shown(group)} does not say which nodes are one device; expected {known}"
    for number, node in enumerate(rule.nodes):
        if group and is_each(node) and node.as_ and not set(words_of(node.as_)) & set(OF_NODE):
            text = f"{shown(node.as_)} is one place for all nodes of a group; expected {{basename}} in it"
            yield f"nodes[{number}].as", text


def is_each(node: Node) -> bool:
    """Of a group: given once for each of its nodes."""
    return any(word in OF_NODE for word in words_of(node.path))


def _texts(rule: PoolRule) -> Iterator[tuple[str, str]]:
    yield "name", rule.name
    yield from ((f"env.{name}", value) for name, value in rule.env.items())
    for number, node in enumerate(rule.nodes):
        yield f"nodes[{number}].path", node.path
        yield f"nodes[{number}].as", node.as_
    for what, command in (("prepare", rule.prepare), ("reset", rule.reset), ("health", rule.health)):
        yield from ((f"{what}.command", text) for text in (command.command if command is not None else ()))


def _wrong_value(value: object) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"sysfs"} and isinstance(value["sysfs"], str):
            return ""
        if set(value) == {"version"}:
            text = str(value["version"])
            return "" if SEMVER.fullmatch(text) else f"{shown(text)} is no version; expected MAJOR.MINOR.PATCH"
        return "is no value; expected text, a whole number, true or false, {sysfs: FILE} or {version: X.Y.Z}"
    if isinstance(value, str):
        return "" if len(value) <= LONGEST_VALUE else f"has {len(value)} signs; expected at most {LONGEST_VALUE}"
    return "" if isinstance(value, int) else f"is {shown(value)}; expected text, a whole number, true or false"


def _command_faults(what: str, command: Command, *, has_containers: bool = False) -> Iterator[tuple[str, str]]:
    if command.per_container and not has_containers:
        yield f"{what}.perContainer", f"is not known here; expected it in {PLUGIN_RESETS} alone"
    yield from _program_faults(what, command)
    if not 0 <= command.retries <= 10:
        yield f"{what}.retries", f"is {command.retries}; expected 0 to 10"


def _program_faults(what: str, command: Command | Health) -> Iterator[tuple[str, str]]:
    if not command.command or not command.command[0].startswith("/"):
        yield f"{what}.command", "expected a list that begins with the absolute path of a program"
    if seconds(command.timeout) is None:
        yield f"{what}.timeout", f"{shown(command.timeout)} is no time; expected one such as 10s, at most an hour"


def _health_faults(health: Health) -> Iterator[tuple[str, str]]:
    yield from _program_faults("health", health)
    if (seconds(health.period) or 0.0) < SHORTEST_PERIOD_S:
        yield "health.period", f"{shown(health.period)} is no time; expected one such as 30s, from 1s to an hour"


def seconds(text: str | float) -> float | None:
    if isinstance(text, int | float):
        return float(text) if 0 < text <= LONGEST_TIMEOUT_S else None
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m|h)", text)
    if found is None:
        return None
    value = float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]]
    return value if 0 < value <= LONGEST_TIMEOUT_S else None


def words_of(text: str) -> list[str]:
    return PLACEHOLDER.findall(text)


def sysfs_words(rule: PoolRule) -> dict[str, str]:
    """Attributes that sysfs tells, with its files: a name may say them too. Nothing else may, for a device writes them
    itself, and a name keeps only what is harmless."""
    return {
        name: str(value["sysfs"])
        for name, value in rule.attributes.items()
        if isinstance(value, Mapping) and "sysfs" in value and name not in WORDS
    }


def filled(text: str, words: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: words.get(found[1], ""), text)


def as_label(text: str) -> str:
    """A DNS label as near to the text as can be; empty where nothing of it can be one."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return found if is_label(found) else ""
