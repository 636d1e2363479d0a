# SPDX-License-Identifier: Apache-2.0
"""From layers of raw values to one checked configuration, with every complaint at once. The later layer wins."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from agent.config.document import API_VERSION, FORMER_VERSIONS, KIND, Configuration
from agent.config.keys import KeyEntry, all_keys
from agent.config.kinds import Wrong
from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding, shown, suggestion

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Section = TypeVar("Section", bound=DataclassInstance)

DEFAULT_ORIGIN = "default"
HEADER = {"apiVersion": API_VERSION, "kind": KIND}


Layer = Mapping[str, Tree]
"""Keys that one source sets, by path."""


class CheckedConfiguration(msgspec.Struct, frozen=True):
    """The outcome. `configuration` is None exactly when there are findings."""

    configuration: Configuration | None
    findings: tuple[Finding, ...]
    origins: Mapping[str, str]


def flatten(document: Tree, source: str) -> tuple[Layer, list[Finding]]:
    """The keys a document sets, and what is wrong with its outline."""
    values: dict[str, Tree] = {}
    findings: list[Finding] = []
    if document.kind != "map":
        return {}, [Finding(document.where, "", f"{shown(plain(document))} is not a {KIND} document")]
    for name, expected in HEADER.items():
        given = document.entries.get(name)
        if given is None:
            findings.append(Finding(source, name, f'missing; write "{name}: {expected}"'))
        elif given.scalar != expected and (name != "apiVersion" or given.scalar not in FORMER_VERSIONS):
            findings.append(Finding(given.where, name, f"{shown(plain(given))} is not {expected}"))
    sections = {path.partition(".")[0] for path in all_keys(Configuration)}
    for name, tree in document.entries.items():
        if name in HEADER:
            continue
        if name not in sections:
            hint = suggestion(name, sections) or f"; sections are {', '.join(sorted(sections))}"
            findings.append(Finding(tree.where, name, f"unknown section{hint}"))
        else:
            _flatten_section(name, tree, values, findings)
    return values, findings


def former_form(document: Tree) -> list[Finding]:
    """That a document is of a version which is still read, and what writes the new one."""
    given = document.entries.get("apiVersion") if document.kind == "map" else None
    if given is None or given.scalar not in FORMER_VERSIONS:
        return []
    text = f"{given.scalar} is a former version and is still read; `kepd config migrate` writes {API_VERSION}"
    return [Finding(given.where, "apiVersion", text)]


def _flatten_section(path: str, tree: Tree, values: dict[str, Tree], findings: list[Finding]) -> None:
    keys = all_keys(Configuration)
    if path in keys:
        values[path] = tree
        return
    if tree.kind == "scalar" and tree.scalar is None:
        return
    if tree.kind != "map":
        findings.append(Finding(tree.where, path, f"{shown(plain(tree))} is not a map of keys"))
        return
    known = {key.removeprefix(path + ".").partition(".")[0] for key in keys if key.startswith(path + ".")}
    for name, child in tree.entries.items():
        if name in known:
            _flatten_section(f"{path}.{name}", child, values, findings)
        else:
            findings.append(Finding(child.where, f"{path}.{name}", f"unknown key{suggestion(name, known)}"))


def check_layers(layers: Sequence[Layer], findings: Sequence[Finding] = ()) -> CheckedConfiguration:
    """Lay the layers over the defaults. Values that a later layer hides are checked all the same."""
    found = list(findings)
    keys = all_keys(Configuration)
    values: dict[str, object] = {}
    origins = dict.fromkeys(keys, DEFAULT_ORIGIN)
    for layer in layers:
        for path, tree in layer.items():
            if tree.scalar == "" and keys[path].default == "" and keys[path].key.derived:
                values.pop(path, None)  # empty means: as the host has it, whatever an earlier layer said
                origins[path] = DEFAULT_ORIGIN
                continue
            value = _read(keys[path], tree, found)
            if value is _UNREADABLE:
                continue
            below = values.get(path)
            values[path] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
            origins[path] = tree.where
    if found:
        return CheckedConfiguration(None, tuple(found), origins)
    by_field = {keys[path].fields: value for path, value in values.items()}
    return CheckedConfiguration(build(by_field), (), origins)


_UNREADABLE = object()


def _read(entry: KeyEntry, tree: Tree, findings: list[Finding]) -> object:
    raw = plain(tree)
    if raw is None:
        findings.append(Finding(tree.where, entry.path, "has no value; set one, or remove the key"))
        return _UNREADABLE
    try:
        return entry.key.kind.read(raw)
    except Wrong as error:
        findings.append(Finding(tree.where, entry.path, str(error)))
        return _UNREADABLE


def build(values: Mapping[tuple[str, ...], object]) -> Configuration:
    """A configuration from checked values by field names; what is not given has its default."""
    return _build(Configuration(), (), values)


def _build(section: "Section", names: tuple[str, ...], values: Mapping[tuple[str, ...], object]) -> "Section":
    given: dict[str, object] = {}
    for entry in fields(section):
        below = (*names, entry.name)
        if "key" not in entry.metadata:
            given[entry.name] = _build(getattr(section, entry.name), below, values)
        elif below in values:
            given[entry.name] = values[below]
    return replace(section, **given)
