# SPDX-License-Identifier: Apache-2.0
"""Where control groups are mounted, and in which groups a process is.

Version 1 has one hierarchy per controller, some of which share a mount; version 2 has one for all. Hybrid nodes have
both, the second without controllers but with pressure files. Never a fixed path: mounts are read.
"""

from collections.abc import Mapping

import msgspec

UNIFIED = ""
CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "pids")
SEPARATOR = "-"
ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Mount(msgspec.Struct, frozen=True):
    """`root` is the group that is seen at `point`; everything but `/` only inside of containers."""

    point: str
    root: str = "/"


class Hierarchies(msgspec.Struct, frozen=True):
    """By controller; that of version 2 is `UNIFIED`."""

    mounts: Mapping[str, Mount]

    @property
    def version(self) -> int:
        """Of the controllers that count memory."""
        return 1 if "memory" in self.mounts else 2

    def folder(self, controller: str, group: str) -> str | None:
        """The directory of a group, if this hierarchy is mounted and the group lies in what is seen of it."""
        mount = self.mounts.get(controller)
        if mount is None:
            return None
        root = mount.root.rstrip("/")
        if group != root and not group.startswith(f"{root}/"):
            return None
        return f"{mount.point}{group.removeprefix(root)}".rstrip("/")


def read_mounts(text: str) -> Hierarchies:
    """Of /proc/self/mountinfo. Of several mounts of one hierarchy the first counts."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        words = line.split(" ")
        if SEPARATOR not in words[6:]:
            continue
        kind, _, options = words[words.index(SEPARATOR, 6) + 1 :][:3] or ("", "", "")
        mount = Mount(_unescaped(words[4]), _unescaped(words[3]))
        if kind == "cgroup2":
            found.setdefault(UNIFIED, mount)
        elif kind == "cgroup":
            for controller in options.split(","):
                if controller in CONTROLLERS:
                    found.setdefault(controller, mount)
    return Hierarchies(found)


def read_groups(text: str) -> dict[str, str]:
    """Of /proc/PID/cgroup: the group in each hierarchy."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2) if line.count(":") > 1 else ("", "?", "")
        for controller in controllers.split(","):
            if controller in (UNIFIED, *CONTROLLERS):
                found[controller] = group
    return found


def neighbour(group: str, sandbox_id: str, instance_id: str) -> str | None:
    """The group of a container, by that of its sandbox: runtimes name both in the same way."""
    above, _, name = group.rpartition("/")
    return f"{above}/{name.replace(sandbox_id, instance_id)}" if sandbox_id in name else None


def above(group: str) -> str:
    """The group that a group is in: that of a pod, for its sandbox."""
    return group.rpartition("/")[0] or "/"


def _unescaped(path: str) -> str:
    for escape, plain in ESCAPES.items():
        path = path.replace(escape, plain)
    return path
