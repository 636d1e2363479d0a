# SPDX-License-Identifier: Apache-2.0
"""Manifests taken apart.

Whoever asks several to look at one text holds its documents meanwhile, so that it is parsed once. They share the trees
and never change them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from agent.config.strict_yaml import Tree, documents_or_fault
from agent.model.finding import Finding

Documents = tuple[list[Tree], list[Finding]]
Content = dict[str, object]


class PreparedDocuments:
    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Documents] = {}

    def of(self, content: bytes, path: str) -> Documents:
        """All documents of a text, and its duplicate keys; or none, and why it cannot be taken apart."""
        trees, faults = self._known.get((path, content)) or documents_or_fault(content, path)
        return [*trees], [*faults]

    @contextmanager
    def holding(self, content: bytes, path: str) -> Iterator[None]:
        """For several who look at one text in turn."""
        self._known[path, content] = documents_or_fault(content, path)
        try:
            yield
        finally:
            self._known.pop((path, content), None)


PREPARED = PreparedDocuments()
"""Of this process."""


def documents_of(content: bytes, path: str) -> Documents:
    return PREPARED.of(content, path)
