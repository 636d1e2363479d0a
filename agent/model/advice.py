# SPDX-License-Identifier: Apache-2.0
"""One thing that should be changed on this node, outside of kepd."""

from dataclasses import dataclass

__all__ = ["Advice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`text` says what goes wrong as it is."""

    subject: str
    found: str
    wanted: str
    text: str
