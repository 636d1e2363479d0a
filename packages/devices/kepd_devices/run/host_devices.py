# SPDX-License-Identifier: Apache-2.0
"""Nodes below /dev that patterns of the configuration match, with what sysfs says of them."""

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

from kepd_devices.cdi.merging import HostNode
from kepd_devices.local.configured import SeenNode
from kepd_devices.local.pool_rules import PoolRule

DEV, SYS = Path("/dev"), Path("/sys")
LONGEST_VALUE = 256


class HostDevices:
    def __init__(self, dev: Path = DEV, sys: Path = SYS) -> None:
        self._dev = dev
        self._sys = sys

    def look(self, rules: Sequence[PoolRule]) -> list[list[SeenNode]]:
        """Blocking."""
        return [list(self._matching(rule)) for rule in rules]

    def directories(self, rules: Sequence[PoolRule]) -> list[Path]:
        """Blocking. Below /dev, where patterns look, as far as they are there."""
        found: dict[Path, None] = {}
        for rule in rules:
            parts = rule.match.glob.removeprefix("/dev/").split("/")
            for depth in range(1, len(parts)):
                for one in sorted(glob("/".join([str(self._dev), *parts[:depth]]))):  # noqa: PTH207  # as below
                    path = Path(one)
                    if path.is_dir() and path.resolve().is_relative_to(self._dev.resolve()):
                        found[path] = None
        return list(found)

    def _matching(self, rule: PoolRule) -> Iterable[SeenNode]:
        pattern = f"{self._dev}/{rule.match.glob.removeprefix('/dev/')}"
        asked = {*rule.match.sysfs, *(str(one["sysfs"]) for one in rule.attributes.values()
                                      if isinstance(one, dict) and "sysfs" in one)}  # fmt: skip
        for path in sorted(glob(pattern)):  # noqa: PTH207  # names with dots first are meant if the pattern says so
            node = self._node(Path(path))
            if node is not None:
                yield SeenNode(path, node, self._values(node, asked), str(Path(path).resolve()))

    def _node(self, path: Path) -> HostNode | None:
        """Of a device that is really below /dev."""
        with suppress(OSError):
            if not path.resolve().is_relative_to(self._dev.resolve()):
                return None
            facts = path.stat()
            kind = "c" if stat.S_ISCHR(facts.st_mode) else "b" if stat.S_ISBLK(facts.st_mode) else ""
            if kind:
                return HostNode(
                    type=kind,
                    major=os.major(facts.st_rdev),
                    minor=os.minor(facts.st_rdev),
                    mode=stat.S_IMODE(facts.st_mode),
                    uid=facts.st_uid,
                    gid=facts.st_gid,
                )
        return None

    def _values(self, node: HostNode, asked: Iterable[str]) -> dict[str, str]:
        """A file's value is that of the device, or of the nearest of those that it hangs on."""
        kind = "char" if node.type == "c" else "block"
        place = (self._sys / "dev" / kind / f"{node.major}:{node.minor}").resolve()
        found: dict[str, str] = {}
        for name in asked:
            if "/" in name or name.startswith("."):
                continue
            for directory in (place, *place.parents):
                if directory == self._sys.resolve() or not directory.is_relative_to(self._sys.resolve()):
                    break
                with suppress(OSError, UnicodeError):
                    found[name] = (directory / name).read_text()[:LONGEST_VALUE].strip()
                    break
        return found
