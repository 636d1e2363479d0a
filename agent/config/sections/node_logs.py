# SPDX-License-Identifier: Apache-2.0
"""The section of the configuration about logs of the node's services, as document.py has the others."""

from dataclasses import dataclass

from agent.config.keys import Words, key
from agent.config.kinds import BOOL, MAYBE_PATH, PATH, SIZE, TEXT, list_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogsSection:
    enabled: bool = key(BOOL, True, "Give logs of the node's services to those who may operate.")
    units: Words = key(
        list_of(TEXT, "units"),
        (
            "kepd*", "containerd", "crio", "docker", "kubelet", "systemd-networkd", "systemd-resolved", "chrony*",
            "nftables", "kernel",
        ),
        "Units that members of `api.operateGroup` may read; `*` stands for any signs. Root may read all.",
    )  # fmt: skip
    directories: Words = key(list_of(PATH, "directories"), ("/var/log",), "Where log files may be read from.")
    journal: str = key(MAYBE_PATH, "", "Directory with the journal.", "where journald of this system writes")
    max_bytes: int = key(SIZE, 64 << 20, "Longest answer.")
