# SPDX-License-Identifier: Apache-2.0
"""One GET and its answer, as probes and hooks ask it. Values only."""

from collections.abc import Sequence

import msgspec


class HttpQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """One GET. Whoever asks bounds it in time."""

    host: str
    port: int
    path: str = "/"
    is_tls: bool = False
    headers: Sequence[tuple[str, str]] = ()


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back. `is_redirect_elsewhere` says that it points to another host and was not followed."""

    status: int
    body: bytes = b""
    is_redirect_elsewhere: bool = False


def has_control(text: str) -> bool:
    """What would begin another line of a request, or confuse who reads it."""
    return any(ord(sign) < 32 or ord(sign) == 127 for sign in text)  # the control characters of ASCII
