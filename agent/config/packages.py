# SPDX-License-Identifier: Apache-2.0
"""The planes that are packages of their own, and which of them this installation has."""

from functools import cache
from importlib.util import find_spec

PACKAGES = {"devices": "kepd-devices", "dns": "kepd-dns"}


@cache
def is_installed(plane: str) -> bool:
    """Whether its code is here; that of the other planes always is."""
    package = PACKAGES.get(plane)
    return package is None or find_spec(package.replace("-", "_")) is not None


def not_installed(plane: str) -> str:
    return f"not installed here: it is the package {PACKAGES[plane]}"
