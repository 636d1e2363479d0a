# SPDX-License-Identifier: Apache-2.0
"""All kinds, as their files tell of them. A new one is a file in one of the folders, and nothing else."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from msgspec.structs import replace

import agent.kinds
from agent.kinds.kind import POD_PATH, Kind


def _kinds() -> Iterator[Kind]:
    for folder in iter_modules(agent.kinds.__path__, "agent.kinds."):
        if folder.ispkg:
            for module in iter_modules(import_module(folder.name).__path__, f"{folder.name}."):
                kind: Kind | None = getattr(import_module(module.name), "KIND", None)
                if kind is not None:
                    yield replace(kind, module=module.name)


KINDS = tuple(_kinds())
BY_WORD = {word: kind for kind in KINDS for word in kind.words}
BY_API = {kind.api: kind for kind in KINDS if kind.api}
BY_WRITTEN = {kind.written_as: kind for kind in KINDS if kind.written_as}
BY_WRITTEN |= {name: replace(kind, api=name) for kind in KINDS for name in kind.also_written}
MANIFEST_KINDS = tuple(BY_WRITTEN)
"""What may stand in a manifest; the others are made here."""
WITH_PODS = {kind.api: kind for kind in KINDS if kind.pod_path}
WORKLOADS = tuple(kind.api for kind in KINDS if kind.is_carried_out and kind.pod_path == POD_PATH)
CARRIED_OUT = frozenset(kind.api for kind in KINDS if kind.is_carried_out)
CLUSTER_KINDS = frozenset(kind.written_as for kind in KINDS if not kind.has_namespace)


def kinds_read_by(module: str) -> tuple[str, ...]:
    return tuple(name for name, kind in BY_WRITTEN.items() if kind.read_by == module)


# Groups of Kubernetes with kinds of ours, and other kinds of these groups, which are no slips of the pen.
OUR_GROUPS = frozenset(kind.group for kind in KINDS)
