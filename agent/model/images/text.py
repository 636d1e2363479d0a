# SPDX-License-Identifier: Apache-2.0
"""Texts as programs written in Go print them, where our users compare ours with a kubelet's letter by letter.

Source of behaviour: Go `strconv.Quote`, `time.Duration.String`.
"""

ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
    "\v": "\\v",
}  # fmt: skip
NANOS_PER_S = 10**9
NANOS_PER_MS = 10**6
GIB, MIB, KIB = 2**30, 2**20, 2**10


def quoted(text: str) -> str:
    """The text in double quotes; what cannot be printed becomes an escape."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(sign: str) -> str:
    if sign in ESCAPES:
        return ESCAPES[sign]
    if sign.isprintable():
        return sign
    code = ord(sign)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def duration_text(seconds: float) -> str:
    """A span cut to milliseconds: `312ms`, `39.356s`, `1m2.5s`, `1h0m0s`."""
    nanos = round(seconds * NANOS_PER_S)
    millis = abs(nanos) // NANOS_PER_MS
    if millis == 0:
        return "0s"
    sign = "-" if nanos < 0 else ""
    if millis < 1000:
        return f"{sign}{millis}ms"
    whole, rest = divmod(millis, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{rest:03d}".rstrip("0") if rest else ""
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{whole}{fraction}s"


def bytes_text(size_bytes: int) -> str:
    """A size for people: `1.2GiB`."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f}{unit}"
    return f"{size_bytes}B"
