# SPDX-License-Identifier: Apache-2.0
"""Which port of a bridge is the host's end of a pod's interface, as CNI has left it written (libcni's cache)."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

RESULTS = Path("/var/lib/cni/results")
INTERFACE = "-eth0"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,15}")
MOST_BYTES = 1 << 20


class PodLinks:
    """Looks into the folder when something has come or gone there, and into each file once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder, self._seen_ns = folder, -1
        self._paths: dict[str, Path] = {}
        self._links: dict[str, str] = {}

    def of(self, sandboxes: Iterable[str]) -> dict[str, str]:
        """By sandbox the link; those are left out whose network is no bridge, or of whose CNI nothing is written."""
        self._links = {one: link for one in sandboxes if (link := self._links.get(one) or self._read(one))}
        return self._links

    def _read(self, sandbox: str) -> str:
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns != self._seen_ns:
                named = (path for path in self._folder.iterdir() if path.name.endswith(INTERFACE))
                self._paths = {path.name.removesuffix(INTERFACE).rpartition("-")[2]: path for path in named}
                self._seen_ns = changed_ns
            if sandbox in self._paths:
                with self._paths[sandbox].open("rb") as file:
                    return _link(json.loads(file.read(MOST_BYTES))["result"]["interfaces"])
        return ""


def _link(interfaces: list[dict[str, str]]) -> str:
    """A bridge comes first, then its port, then the pod's end, which alone has a network namespace."""
    at = next((place for place, one in enumerate(interfaces) if one.get("sandbox")), 0)
    return interfaces[at - 1]["name"] if at >= 2 and NAME.fullmatch(interfaces[at - 1]["name"]) else ""
