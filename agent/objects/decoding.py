# SPDX-License-Identifier: Apache-2.0
"""Manifests taken apart, once for all planes that read them.

The follower of the directory parses each file that changed before any plane sees it. Planes share the trees and never
change them. The trees are kept until every plane has read them, because they take far more memory than their text. A
text that was not prepared is parsed by whoever asks for it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from agent.config.strict_yaml import Tree, documents_or_fault, plain
from agent.model.finding import Finding
from agent.model.manifests.in_force import Key

CLUSTER_KINDS = frozenset({"Node", "ServiceCIDR", "Namespace", "DeviceClass", "ResourceSlice"})
MOST_BYTES = 16 << 20
"""Of the texts whose trees are kept."""
Documents = tuple[list[Tree], list[Finding]]
Content = dict[str, object]


class PreparedDocuments:
    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Documents] = {}
        self._bytes = 0

    def prepare(self, content: bytes, path: str) -> None:
        if (path, content) not in self._known and self._bytes + len(content) <= MOST_BYTES:
            self._known[path, content] = documents_or_fault(content, path)
            self._bytes += len(content)

    def of(self, content: bytes, path: str) -> Documents:
        """All documents of a text, and its duplicate keys; or none, and why it cannot be taken apart."""
        trees, faults = self._known.get((path, content)) or documents_or_fault(content, path)
        return [*trees], [*faults]

    @contextmanager
    def holding(self, content: bytes, path: str) -> Iterator[None]:
        """For several who look at one text in turn."""
        self.prepare(content, path)
        try:
            yield
        finally:
            if self._known.pop((path, content), None) is not None:
                self._bytes -= len(content)

    def forget(self) -> None:
        """All have what they need."""
        self._known, self._bytes = {}, 0


PREPARED = PreparedDocuments()
"""Of this process: planes read the same files and do not know each other."""


def documents_of(content: bytes, path: str) -> Documents:
    return PREPARED.of(content, path)


def objects_of(trees: Iterable[Tree]) -> Iterator[tuple[str, Tree]]:
    """With their kinds; lists are taken apart. Items of a list of one kind need repeat neither kind nor version."""
    for tree in trees:
        given, items = tree.entries.get("kind"), tree.entries.get("items")
        kind = str(given.scalar) if given is not None else ""
        if given is None or items is None or not kind.endswith("List"):
            yield kind, tree
            continue
        head: dict[str, Tree] = {}
        if kind != "List":
            head = {"kind": replace(given, scalar=kind.removesuffix("List"))}
            head |= {"apiVersion": tree.entries["apiVersion"]} if "apiVersion" in tree.entries else {}
        yield from objects_of(
            replace(item, entries={**head, **item.entries}) if item.kind == "map" else item for item in items.items
        )


def keyed_objects(path: str, content: bytes) -> Iterator[tuple[Key, Content]]:
    """Each object of a file with its key; nothing of a file that cannot be read."""
    for kind, tree in objects_of(documents_of(content, path)[0]):
        document = plain(tree)
        if isinstance(document, dict):
            metadata = document.get("metadata")
            named = metadata if isinstance(metadata, dict) else {}
            namespace = "" if kind in CLUSTER_KINDS else str(named.get("namespace") or "default")
            yield (kind, namespace, str(named.get("name") or "")), document
