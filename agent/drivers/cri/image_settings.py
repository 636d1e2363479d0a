# SPDX-License-Identifier: Apache-2.0
"""Settings of images that containerd 2.x no longer tells: from the file that the process behind the socket was given.

Never: runs a program. Where the process is in another namespace, or its file cannot be read, nothing is known.
"""

import asyncio
import glob
import socket
import struct
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

DEFAULT_FILE = "/etc/containerd/config.toml"
MOST_BYTES, MOST_FILES = 1 << 20, 32
CONNECT_S = 1.0
# Which part of the file has the settings of images, in versions 3 and 2.
SECTIONS = ("io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri")

Settings = dict[str, object]


async def read_image_settings(endpoint: str) -> Settings:
    """In the shape and with the names that older versions tell; only what the file says."""
    return await asyncio.to_thread(_read, endpoint)


def _read(endpoint: str) -> Settings:
    try:
        arguments = _command_line(_listener(endpoint.removeprefix("unix://")))
        merged: Settings = {}
        for document in _documents(Path(config_file(arguments)), set()):
            _merge(merged, document)
    except (OSError, ValueError, RecursionError):
        return {}
    return image_settings(merged)


def config_file(arguments: Sequence[str]) -> str:
    """The file that a command line names."""
    for number, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.lstrip("-") in ("c", "config") and flag.startswith("-"):
            return value if equals else (*arguments, "")[number + 1]
    return DEFAULT_FILE


def image_settings(document: Settings) -> Settings:
    """Of one whole configuration, whatever its version."""
    plugins = document.get("plugins")
    found: Settings = {}
    for name in SECTIONS:
        section = plugins.get(name) if isinstance(plugins, dict) else None
        if not isinstance(section, dict):
            continue
        registry, pinned, containerd = (section.get(key) for key in ("registry", "pinned_images", "containerd"))
        registry, pinned = (one if isinstance(one, dict) else {} for one in (registry, pinned))
        if "config_path" in registry:
            found["registry"] = {"configPath": registry["config_path"]}
        if image := pinned.get("sandbox", section.get("sandbox_image")):
            found["sandboxImage"] = image
        source = containerd if isinstance(containerd, dict) else section
        found["containerd"] = {
            "snapshotter": source.get("snapshotter"),
            "disableSnapshotAnnotations": source.get("disable_snapshot_annotations", True),
        }
        return found
    return found


def _listener(path: str) -> int:
    """The process that listens at a socket; 0 where it is in another namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.settimeout(CONNECT_S)
        client.connect(path)
        pid: int = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _command_line(pid: int) -> list[str]:
    if pid <= 1:
        raise ProcessLookupError(f"process {pid} is not the runtime itself")
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")


def _documents(path: Path, seen: set[Path]) -> Iterator[Settings]:
    """A file and what it imports, the last word last."""
    if path in seen or len(seen) >= MOST_FILES:
        return
    seen.add(path)
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES} bytes")
    document = tomllib.loads(content.decode())
    yield document
    imports = document.get("imports")
    for pattern in imports if isinstance(imports, list) else ():
        for name in sorted(glob.glob(str(path.parent / str(pattern)))):  # noqa: PTH207  # patterns may be absolute
            yield from _documents(Path(name), seen)


def _merge(into: Settings, other: Settings) -> None:
    for key, value in other.items():
        mine = into.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            _merge(mine, value)
        else:
            into[key] = value
