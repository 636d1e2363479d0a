# SPDX-License-Identifier: Apache-2.0
"""Finds programs of the node itself by their names: root's, of this pid namespace, and in no container's group.

Anybody can call a process `kubelet`, in a pod too. A name alone must not make kepd behave otherwise.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

# What runtimes call the group of a container: its id, with a prefix and a suffix under systemd; and the groups of pods.
_CONTAINER = re.compile(r"/(?:[a-z-]+-)?[0-9a-f]{64}(?:\.scope)?(?=/|\Z)|/kubepods\b")
_ROOT = ["0", "0", "0", "0"]


def node_programs(names: Collection[str], root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Pid and name of each, in the order of pids."""
    proc = root / "proc"
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            name = (folder / "comm").read_text("utf-8", "replace").strip()
            if name in names and _is_of_node(folder, proc):
                yield int(folder.name), name


def status_of(folder: Path) -> dict[str, list[str]]:
    """What the kernel says of a process, by its words. Raises OSError when it is gone."""
    lines = (line.partition(":") for line in (folder / "status").read_text("utf-8", "replace").splitlines())
    return {word: values.split() for word, _, values in lines}


def _is_of_node(folder: Path, proc: Path) -> bool:
    status = status_of(folder)
    # A process of another pid namespace has a number in each.
    if status.get("Uid") != _ROOT or len(status.get("NSpid", ())) > 1:
        return False
    own = _groups(proc / "1")
    return not any(_CONTAINER.search(path.removeprefix(own.get(kind, ""))) for kind, path in _groups(folder).items())


def _groups(folder: Path) -> dict[str, str]:
    """Group by hierarchy. The first process' is the root of this node, which may be a container itself."""
    lines = (line.split(":", 2) for line in (folder / "cgroup").read_text("utf-8", "replace").splitlines())
    return {kind: path.removesuffix("/init.scope").removesuffix("/") for _, kind, path in lines}
