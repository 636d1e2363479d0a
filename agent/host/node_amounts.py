# SPDX-License-Identifier: Apache-2.0
"""What this node has for pods, in Kubernetes' amounts, and what tells it from others."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from agent.config.document import Configuration

MEMORY, RELEASE = Path("/proc/meminfo"), Path("/etc/os-release")
MARKS = {"boot_id": Path("/proc/sys/kernel/random/boot_id"), "machine_id": Path("/etc/machine-id")}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def capacity(configuration: Configuration) -> dict[str, str]:
    disk = 0
    with suppress(OSError):
        told = os.statvfs(configuration.node.state_directory)
        disk = told.f_blocks * told.f_frsize
    return _amounts((os.cpu_count() or 1) * 1000, _memory_bytes(), disk, configuration)


def allocatable(configuration: Configuration) -> dict[str, str]:
    """Without what is kept for others."""
    whole, kept = capacity(configuration), configuration.pods.reserved
    milli_cpus = (os.cpu_count() or 1) * 1000 - round(kept.cpu * 1000)
    memory = max(_memory_bytes() - kept.memory, 0)
    return whole | {"cpu": _cpus(milli_cpus), "memory": f"{memory >> 10}Ki"}


def _amounts(milli_cpus: int, memory_bytes: int, disk_bytes: int, configuration: Configuration) -> dict[str, str]:
    return {
        "cpu": _cpus(milli_cpus), "memory": f"{memory_bytes >> 10}Ki", "pods": str(configuration.pods.max_pods),
        "ephemeral-storage": f"{disk_bytes >> 10}Ki",
    }  # fmt: skip


def _cpus(milli_cpus: int) -> str:
    return str(milli_cpus // 1000) if milli_cpus % 1000 == 0 else f"{max(milli_cpus, 0)}m"


@cache
def _memory_bytes() -> int:
    lines = _text(MEMORY).splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")), 0)


@cache
def marks() -> Mapping[str, str]:
    """They stay while the process runs."""
    machine = platform.machine()
    words = dict(line.split("=", 1) for line in _text(RELEASE).splitlines() if "=" in line)
    return {
        "os_image": words.get("PRETTY_NAME", "").strip('"'),
        "architecture": ARCHITECTURES.get(machine, machine),
        **{name: _text(path).strip() for name, path in MARKS.items()},
    }


def _text(path: Path) -> str:
    """Empty where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""
