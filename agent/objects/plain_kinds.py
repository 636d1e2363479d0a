# SPDX-License-Identifier: Apache-2.0
"""Kinds that no plane carries out: they are checked by their own files, kept, and shown."""

from agent.config.shape import place_of
from agent.config.strict_yaml import Tree, plain
from agent.kinds.registry import BY_WRITTEN
from agent.model.finding import Finding
from agent.objects.reading import Reading

PLAIN = {name: kind for name, kind in BY_WRITTEN.items() if kind.faults is not None}


def _read(tree: Tree, name: str, _path: str, findings: list[Finding]) -> object | None:
    kind, content, before = PLAIN[name], plain(tree), len(findings)
    if not isinstance(content, dict) or kind.faults is None:
        return None
    if content.get("apiVersion") != kind.api_version:
        findings.append(Finding(place_of(tree, "apiVersion"), "apiVersion", f"must be {kind.api_version}"))
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        findings.append(Finding(place_of(tree, "metadata"), "metadata.name", "is missing"))
    findings += [Finding(place_of(tree, path), path, text) for path, text in kind.faults(content)]
    return content if len(findings) == before else None


PLAIN_READING = Reading("objects", frozenset(PLAIN), _read)
