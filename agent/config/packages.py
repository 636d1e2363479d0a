# SPDX-License-Identifier: Apache-2.0
"""What is a package of its own, and which of them this installation has."""

from functools import cache
from importlib.util import find_spec

PACKAGES = {
    "devices": "kepd-devices", "dns": "kepd-dns", "ui": "kepd-ui", "door": "kepd-door", "rehearsal": "kepd-rehearsal",
}  # fmt: skip
"""By the plane, and what else may be left out: `ui`, the live screens of kepctl, `door`, Kubernetes' API for kubectl,
and `rehearsal`, what `kepctl what-if` tells."""


@cache
def is_installed(part: str) -> bool:
    """Whether its code is here; what is no package always is."""
    package = PACKAGES.get(part)
    return package is None or find_spec(package.replace("-", "_")) is not None


def not_installed(part: str) -> str:
    return f"not installed here: it is the package {PACKAGES[part]}"
