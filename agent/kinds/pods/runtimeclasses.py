# SPDX-License-Identifier: Apache-2.0
"""RuntimeClasses: names for handlers of the container runtime, and what a pod costs more that one of them runs."""

import re
from collections.abc import Iterator

from agent.kinds.kind import Kind
from agent.kinds.parts import part
from agent.kinds.table import Column
from agent.kinds.written import AGE, SOURCE, shown_objects

HANDLER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def faults(made: dict[str, object]) -> Iterator[tuple[str, str]]:
    handler = made.get("handler")
    if not isinstance(handler, str) or not HANDLER.fullmatch(handler):
        yield "handler", "must be the name of a handler of the runtime, in small letters, digits and -"
    if made.get("overhead") is not None and not isinstance(part(made, "overhead").get("podFixed") or {}, dict):
        yield "overhead.podFixed", "must be a map of amounts"


KIND = Kind(
    "runtimeclasses", "runtimeclass", (), "RuntimeClass", has_namespace=False, group="node.k8s.io", faults=faults
)
SHOWN = shown_objects((
    Column("NAME", lambda made: made["metadata"]["name"]),
    Column("HANDLER", lambda made: str(made.get("handler") or "")),
    AGE,
    SOURCE,
))  # fmt: skip
