# SPDX-License-Identifier: Apache-2.0
"""Pod manifests into pods.

Owns: which fields are understood. A field this version does not carry out is a finding and keeps its pod from
running: half of what a manifest says would be worse than nothing.
Never: reads files; gets their content.
"""

import json
import re
from collections.abc import Mapping

from agent.config.strict_yaml import Tree, UnreadableYaml, parse_documents, plain
from agent.model.finding import Finding, shown, suggestion
from agent.model.pod import ContainerSpec, PodSpec, static_uid

__all__ = ["read_pods"]

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
OBJECT_FIELDS = ("apiVersion", "kind", "metadata", "spec")
METADATA_FIELDS = ("name", "namespace", "uid", "labels", "annotations")
SPEC_FIELDS = ("containers", "terminationGracePeriodSeconds")
CONTAINER_FIELDS = ("name", "image", "command", "args", "env")


def read_pods(files: Mapping[str, bytes], node: str, *, name_suffix: bool) -> tuple[list[PodSpec], list[Finding]]:
    """All pods of all files, and everything that is wrong with the others."""
    pods: dict[tuple[str, str], PodSpec] = {}
    findings: list[Finding] = []
    for path, content in files.items():
        try:
            documents, duplicates = parse_documents(content, path)
        except UnreadableYaml as error:
            findings.append(error.finding)
            continue
        findings += duplicates
        for document in [] if duplicates else documents:
            if document.entries.get("kind", document).scalar != "Pod":
                continue
            before = len(findings)
            pod = _Reader(findings).pod(document, node, path, suffix=f"-{node}" if name_suffix else "")
            if len(findings) > before:
                continue
            known = pods.setdefault((pod.namespace, pod.name), pod)
            if known is not pod:
                text = f"pod {pod.namespace}/{pod.name} stands in {known.source} already; this one is ignored"
                findings.append(Finding(document.where, "metadata.name", text))
    return list(pods.values()), findings


class _Reader:
    """Reads one document; complaints go to the list it was given."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def pod(self, document: Tree, node: str, path: str, suffix: str) -> PodSpec:
        self._only(document, "", OBJECT_FIELDS)
        self._equals(document, "apiVersion", "v1")
        metadata = self._map(document, "metadata", "metadata")
        self._only(metadata, "metadata", METADATA_FIELDS)
        spec = self._map(document, "spec", "spec")
        self._only(spec, "spec", SPEC_FIELDS)
        name = self._word(metadata, "name", "metadata.name", DNS_SUBDOMAIN, "a DNS name in lower case")
        namespace = "default"
        if "namespace" in metadata.entries:
            namespace = self._word(metadata, "namespace", "metadata.namespace", DNS_LABEL, "a DNS label")
        content = json.dumps(plain(document), sort_keys=True, default=str)
        return PodSpec(
            namespace=namespace,
            name=name + suffix,
            uid=str(metadata.entries["uid"].scalar) if "uid" in metadata.entries else static_uid(content, node, path),
            labels=self._texts(metadata, "labels", "metadata.labels"),
            annotations=self._texts(metadata, "annotations", "metadata.annotations"),
            containers=self._containers(spec),
            source=document.where,
        )

    def _containers(self, spec: Tree) -> tuple[ContainerSpec, ...]:
        listed = spec.entries.get("containers")
        if listed is None or listed.kind != "list" or not listed.items:
            self._wrong(listed or spec, "spec.containers", "must be a list with at least one container")
            return ()
        containers = [self._container(item, f"spec.containers[{index}]") for index, item in enumerate(listed.items)]
        names = [container.name for container in containers]
        for index, name in enumerate(names):
            if name in names[:index]:
                self._wrong(listed.items[index], f"spec.containers[{index}].name", f"{shown(name)} is taken already")
        return tuple(containers)

    def _container(self, tree: Tree, path: str) -> ContainerSpec:
        if tree.kind != "map":
            self._wrong(tree, path, "must be a map")
            return ContainerSpec(name="", image="")
        self._only(tree, path, CONTAINER_FIELDS)
        return ContainerSpec(
            name=self._word(tree, "name", f"{path}.name", DNS_LABEL, "a DNS label"),
            image=self._word(tree, "image", f"{path}.image", re.compile(r"\S+\Z"), "an image reference"),
            command=self._words(tree, "command", f"{path}.command"),
            args=self._words(tree, "args", f"{path}.args"),
            env=self._env(tree, f"{path}.env"),
        )

    def _env(self, tree: Tree, path: str) -> tuple[tuple[str, str], ...]:
        listed = tree.entries.get("env")
        if listed is None:
            return ()
        pairs = []
        for index, item in enumerate(listed.items):
            entries = item.entries
            if set(entries) - {"name", "value"} or not isinstance(entries.get("name", item).scalar, str):
                self._wrong(item, f"{path}[{index}]", "must be a name with a value; other sources are not supported")
            else:
                value = entries["value"].scalar if "value" in entries else ""
                if not isinstance(value, str):
                    self._wrong(item, f"{path}[{index}].value", f"{shown(value)} must be text; put it in quotes")
                pairs.append((str(entries["name"].scalar), str(value)))
        return tuple(pairs)

    def _only(self, tree: Tree, path: str, known: tuple[str, ...]) -> None:
        for name, child in tree.entries.items():
            if name not in known:
                text = f"not supported by this version{suggestion(name, known)}"
                self._wrong(child, f"{path}.{name}".lstrip("."), text)

    def _equals(self, tree: Tree, name: str, expected: str) -> None:
        given = tree.entries.get(name)
        if given is None or given.scalar != expected:
            self._wrong(given or tree, name, f"must be {expected}")

    def _map(self, tree: Tree, name: str, path: str) -> Tree:
        child = tree.entries.get(name)
        if child is None or child.kind != "map":
            self._wrong(child or tree, path, "must be a map")
            return Tree("map", tree.where)
        return child

    def _word(self, tree: Tree, name: str, path: str, pattern: re.Pattern[str], right: str) -> str:
        child = tree.entries.get(name)
        value = child.scalar if child is not None else None
        if isinstance(value, str) and pattern.match(value):
            return value
        self._wrong(child or tree, path, "is missing" if child is None else f"{shown(value)} is not {right}")
        return ""

    def _words(self, tree: Tree, name: str, path: str) -> tuple[str, ...]:
        listed = tree.entries.get(name)
        if listed is None:
            return ()
        for index, item in enumerate(listed.items):
            if not isinstance(item.scalar, str):
                self._wrong(item, f"{path}[{index}]", f"{shown(plain(item))} must be text; put it in quotes")
        if listed.kind != "list":
            self._wrong(listed, path, "must be a list")
        return tuple(str(item.scalar) for item in listed.items)

    def _texts(self, tree: Tree, name: str, path: str) -> tuple[tuple[str, str], ...]:
        child = tree.entries.get(name)
        if child is None:
            return ()
        for key, value in child.entries.items():
            if not isinstance(value.scalar, str):
                self._wrong(value, f"{path}.{key}", f"{shown(plain(value))} must be text; put it in quotes")
        return tuple((key, str(value.scalar)) for key, value in child.entries.items())

    def _wrong(self, tree: Tree, path: str, text: str) -> None:
        self._findings.append(Finding(tree.where, path, text))
