# SPDX-License-Identifier: Apache-2.0
"""Objects that are there though nobody wrote them: the namespaces in which something is, and in each an account that is
called `default`. What is written under their names stands in their place. Pure."""

from collections.abc import Collection, Iterator

from agent.kinds.kind import DEFAULT_NAMESPACE
from agent.objects.decoding import Content
from agent.objects.hidden import Key

KINDS = ("Namespace", "ServiceAccount")
NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def implied(kind: str, keys: Collection[Key]) -> Iterator[tuple[Key, Content]]:
    """Of one kind, beside the objects with these keys; a list of all kinds is of what is written."""
    if kind not in KINDS:
        return
    found = {name if of == "Namespace" else namespace for of, namespace, name in keys}
    names = sorted({DEFAULT_NAMESPACE, *found} - {""})
    if kind == "Namespace":
        for name in names:
            metadata = {"name": name, "labels": {NAMESPACE_LABEL: name}}
            yield ("Namespace", "", name), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    elif kind == "ServiceAccount":
        for name in names:
            metadata = {"name": "default", "namespace": name}
            yield ("ServiceAccount", name, "default"), {"apiVersion": "v1", "kind": kind, "metadata": metadata}
