# SPDX-License-Identifier: Apache-2.0
"""Which images of an index a machine runs: the names that images use for what `uname -m` says.

Source of behaviour: containerd `platforms` for which variants an architecture runs.
"""

import msgspec

MACHINES = {
    "x86_64": ("amd64", ("", "v1")),
    "aarch64": ("arm64", ("", "v8")),
    "armv8l": ("arm", ("v8", "v7", "", "v6", "v5")),
    "armv7l": ("arm", ("v7", "", "v6", "v5")),
    "armv6l": ("arm", ("v6", "v5")),
    "i386": ("386", ("",)),
    "i686": ("386", ("",)),
    "loongarch64": ("loong64", ("",)),
}


class ImagePlatform(msgspec.Struct, frozen=True):
    """What a node runs; the best variant comes first."""

    architecture: str
    variants: tuple[str, ...] = ("",)
    os: str = "linux"


def node_platform(machine: str) -> ImagePlatform:
    """The platform of a machine as `uname -m` calls it; most have the same name for both."""
    return ImagePlatform(*MACHINES.get(machine, (machine, ("",))))
