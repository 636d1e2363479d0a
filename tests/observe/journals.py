# SPDX-License-Identifier: Apache-2.0
"""Journals that no journald wrote: systemd-journal-remote makes them of the export format."""

import subprocess
from pathlib import Path

import msgspec

REMOTE = "/lib/systemd/systemd-journal-remote"
MICROS = 1_000_000
BOOTS = ("a" * 32, "b" * 32)


class Entry(msgspec.Struct, frozen=True):
    time_us: int
    unit: str
    text: bytes
    priority: int = 6
    boot: str = BOOTS[1]


def write_journal(folder: Path, entries: list[Entry], name: str = "system.journal") -> Path:
    folder.mkdir(exist_ok=True)
    content = b"".join(_exported(one) for one in entries)
    ran = subprocess.run([REMOTE, f"--output={folder}/{name}", "-"], input=content, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def _exported(one: Entry) -> bytes:
    source = b"_TRANSPORT=kernel\n" if one.unit == "kernel" else f"_SYSTEMD_UNIT={one.unit}\n".encode()
    return (
        f"__REALTIME_TIMESTAMP={one.time_us}\n__MONOTONIC_TIMESTAMP={one.time_us}\n_BOOT_ID={one.boot}\n".encode()
        + source
        + f"PRIORITY={one.priority}\nSYSLOG_IDENTIFIER=x\n_HOSTNAME=h\n".encode()
        + b"MESSAGE\n" + len(one.text).to_bytes(8, "little") + one.text + b"\n\n"
    )  # fmt: skip
