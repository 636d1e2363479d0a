# SPDX-License-Identifier: Apache-2.0
"""Namespaces. One need not be made: what stands in a namespace makes it, too. One that was made has labels, stays while
it is empty, and takes what is in it along when it goes."""

from agent.kinds.kind import Kind, Subresource
from agent.kinds.parts import part
from agent.kinds.table import Column, Object
from agent.kinds.written import AGE, SOURCE, shown_objects

STATUS: Subresource = ("status", "Namespace", ("get", "patch", "update"))
FINALIZE: Subresource = ("finalize", "Namespace", ("update",))


def phase_of(made: Object) -> str:
    return str(part(made, "status").get("phase") or "Active")


KIND = Kind(
    "namespaces",
    "namespace",
    ("ns",),
    "Namespace",
    has_namespace=False,
    read_by="agent.policies.manifest.reading",
    subresources=(STATUS, FINALIZE),
)
SHOWN = shown_objects((
    Column("NAME", lambda made: made["metadata"]["name"]),
    Column("STATUS", phase_of),
    AGE,
    SOURCE,
))  # fmt: skip
