# SPDX-License-Identifier: Apache-2.0
"""Removes secrets from texts of other programs, such as the runtime's error messages (IMG-B08, C10).

Every text from outside passes here before a log, event, status or state file has it.
"""

import re
from collections.abc import Iterable

STARS = "***"
SHORTEST_VALUE = 4
RULES = (
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s\"'@]+@"), r"\1***@"),
    (re.compile(r"(?i)(\bhttps?://[^\s\"'?]+\?)[^\s\"'<>]+"), r"\1***"),
    (re.compile(r"(?i)\b((?:proxy-)?authorization\"?\s*[:=]\s*\"?)(?:(?:basic|bearer)\s+)?[^\s\",;]+"), r"\1***"),
    (re.compile(r"(?i)\b(basic|bearer)\s+[A-Za-z0-9+/=_.~-]{8,}"), r"\1 ***"),
    (
        re.compile(r"(?i)\b((?:access_?|refresh_?|identity_?|registry_?)?token|password|secret)(\"?\s*[=:]\s*\"?)[^\s\",;&]+"),
        r"\1\2***",
    ),
)  # fmt: skip


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_VALUE:
            text = text.replace(secret, STARS)
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text
