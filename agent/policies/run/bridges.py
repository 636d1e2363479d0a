# SPDX-License-Identifier: Apache-2.0
"""Whether packets between pods of one bridge come to our rules: only if the bridge shows them to netfilter."""

from pathlib import Path

import structlog

log = structlog.get_logger(plane="policies")

KEYS = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")
SETTINGS = "proc/sys/net/bridge"
LINKS = "sys/class/net"
MEND = "modprobe br_netfilter; echo br_netfilter >/etc/modules-load.d/br_netfilter.conf"


class Bridges:
    """Of the network namespace of whoever asks."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def shown(self) -> str:
        """See to it, where there is a bridge; what is in the way, empty if nothing is."""
        bridges = sorted(one.parent.name for one in (self._root / LINKS).glob("*/brif") if any(one.iterdir()))
        if not bridges:
            return ""
        missing = f"policies between pods of one bridge ({', '.join(bridges)}) are not enforced"
        if not (self._root / SETTINGS / KEYS[0]).exists():
            return f"{missing}: the module br_netfilter is not loaded; expected it loaded: {MEND}"
        for key in KEYS:
            path = self._root / SETTINGS / key
            try:
                if path.read_text("ascii").strip() == "0":
                    path.write_text("1\n", "ascii")
                    log.info("bridge_filter_set", file=str(path), before=0, value=1)
            except (OSError, ValueError) as error:
                return f"{missing}: {path} is not 1 and cannot be set: {error}; expected sysctl -w net.bridge.{key}=1"
        return ""
