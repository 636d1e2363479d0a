# SPDX-License-Identifier: Apache-2.0
"""The configuration made readable: as a document, as JSON schema, as a list for the docs."""

import json
import re
from collections.abc import Mapping

import yaml

from agent.config.check import DEFAULT_ORIGIN, CheckedConfiguration
from agent.config.diff import value_at
from agent.config.document import API_VERSION, FORMER_VERSIONS, KIND, Configuration
from agent.config.keys import KeyEntry, all_keys

SHOWN_BY_DEFAULT = {"bool", "duration", "size", "path", "path or empty", "host:port"}
RANGE = re.compile(r"(?:whole )?number (from|of at least)")


def as_document(configuration: Configuration) -> dict[str, object]:
    """The document that would give this configuration."""
    document: dict[str, object] = {"apiVersion": API_VERSION, "kind": KIND}
    for path, entry in all_keys(Configuration).items():
        value = value_at(configuration, entry)
        if value is not None:
            put_at(document, path, json_like(entry.key.kind.show(value)))
    return document


def put_at(document: dict[str, object], path: str, value: object) -> None:
    *sections, name = path.split(".")
    holder = document
    for section in sections:
        inner = holder.setdefault(section, {})
        holder = inner if isinstance(inner, dict) else {}
    holder[name] = value


def json_like(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: json_like(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_like(item) for item in value]
    return value


def as_yaml(document: object) -> str:
    """A document as YAML that our own loader reads back."""
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)


def differences(checked: CheckedConfiguration) -> list[tuple[str, object, object]]:
    """Keys that some source sets to something else than the default: path, default, value."""
    rows: list[tuple[str, object, object]] = []
    for path, entry in all_keys(Configuration).items():
        if checked.configuration is None or checked.origins[path] == DEFAULT_ORIGIN:
            continue
        value = value_at(checked.configuration, entry)
        if value != entry.default:
            show = entry.key.kind.show
            rows.append((path, json_like(show(entry.default)), json_like(show(value))))
    return rows


def with_origins(checked: CheckedConfiguration) -> str:
    if checked.configuration is None:
        return ""
    lines = []
    for path, entry in all_keys(Configuration).items():
        value = json.dumps(json_like(entry.key.kind.show(value_at(checked.configuration, entry))), ensure_ascii=False)
        lines.append(f"{path}: {value}  # {checked.origins[path]}\n")
    return "".join(lines)


def as_schema() -> dict[str, object]:
    root: dict[str, object] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": KIND,
        "type": "object",
        "required": ["apiVersion", "kind"],
        "additionalProperties": False,
        "properties": {"apiVersion": {"enum": [API_VERSION, *FORMER_VERSIONS]}, "kind": {"const": KIND}},
    }
    for path, entry in all_keys(Configuration).items():
        *sections, name = path.split(".")
        holder = root
        for section in sections:
            holder = _properties(holder).setdefault(
                section, {"type": "object", "additionalProperties": False, "properties": {}}
            )
        text = f"{entry.key.doc} Needs a restart." if entry.key.needs_restart else entry.key.doc
        default = json_like(entry.key.kind.show(entry.default))
        _properties(holder)[name] = {**entry.key.kind.schema, "description": text, "default": default}
    return root


def _properties(schema: dict[str, object]) -> dict[str, dict[str, object]]:
    inner = schema["properties"]
    return inner if isinstance(inner, dict) else {}


def as_list() -> str:
    """A line for each key. What values it may have is said where its default does not show it."""
    lines = []
    section = ""
    for path, entry in all_keys(Configuration).items():
        if path.partition(".")[0] != section:
            section = path.partition(".")[0]
            lines.append(f"\n### {section}\n")
        star = "*" if entry.key.needs_restart else ""
        lines.append(f"- `{path}`{star} ({_values(entry)}): {entry.key.doc}")
    return "\n".join(lines).lstrip() + "\n"


def _values(entry: KeyEntry) -> str:
    """The default, and what else there may be."""
    kind = RANGE.sub("from", entry.key.kind.name)
    plain = json_like(entry.key.kind.show(entry.default))
    if entry.key.derived:
        default = entry.key.derived if " " in entry.key.derived else f"`{entry.key.derived}`"
    elif isinstance(plain, bool | list | dict):
        default = f"`{json.dumps(plain)}`" if plain not in ([], {}) else ""
    else:
        default = f"`{plain}`" if plain != "" else "empty"
    others = [word for word in kind.split(" or ") if f"`{word}`" != default]
    if kind in SHOWN_BY_DEFAULT or not others:
        return default
    if len(others) <= kind.count(" or "):
        return " or ".join((", ".join((default, *others[:-1])), others[-1]))
    return f"{default}; {kind}" if default else kind
