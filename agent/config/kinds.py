# SPDX-License-Identifier: Apache-2.0
"""The kinds of value a configuration key can have: how each is read, shown and described.

`read` turns a scalar, list or dict into the value the program uses and raises `Wrong` with what would be right; `show`
is its inverse for people; `schema` is JSON schema.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping

import msgspec

from agent.model.finding import printable, shown, suggestion

JsonSchema = dict[str, object]


class Wrong(ValueError):
    """A value is not what its key takes. The text says what would be right."""


class ValueKind(msgspec.Struct, frozen=True):
    name: str
    read: Callable[[object], object]
    schema: JsonSchema = msgspec.field(default_factory=dict)
    show: Callable[[object], object] = lambda value: value


def _must(condition: object, value: object, right: str) -> None:
    if not condition:
        raise Wrong(f"{shown(value)} is not {right}")


def _read_bool(value: object) -> bool:
    _must(isinstance(value, bool), value, "true or false")
    return bool(value)


LONGEST_TEXT = 4096


def _read_text(value: object) -> str:
    _must(isinstance(value, str), value, "text")
    text = str(value)
    _must(text.isprintable() and len(text) <= LONGEST_TEXT, value, "one line of at most 4096 printable signs")
    return text


BOOL = ValueKind("bool", _read_bool, {"type": "boolean"})


def _read_map(value: object) -> object:
    _must(isinstance(value, dict), value, "a map")
    return value


# What is inside is looked at by the plane that it is for.
MAP = ValueKind("map", _read_map, {"type": "object"})


def _read_path(value: object) -> str:
    text = _read_text(value)
    _must(text.startswith("/"), value, "an absolute path")
    return text


PATH = ValueKind("path", _read_path, {"type": "string"})
MAYBE_PATH = ValueKind("path or empty", lambda value: "" if value == "" else _read_path(value), {"type": "string"})


def _read_group(value: object) -> str:
    """A name, or a number that the kernel takes for a gid."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _read_text(value)
    is_gid = text.isdecimal() and len(text) <= 10 and int(text) <= LARGEST_GID
    is_name = GROUP_NAME.match(text) is not None
    _must(text == "" or is_gid or is_name, value, "a group name, a gid up to 4294967294, or empty")
    return text


LARGEST_GID = 2**32 - 2
# As useradd and getent have them, with the domain of a directory service behind some.
GROUP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@\\-]{0,63}\$?\Z")
GROUP = ValueKind("group", _read_group, {"type": ["string", "integer"]})
TEXT = ValueKind("text", _read_text, {"type": "string"})


def _bounded(name: str, low: float, high: float | None) -> JsonSchema:
    return {"type": name, "minimum": low} if high is None else {"type": name, "minimum": low, "maximum": high}


def integer(low: int, high: int | None = None) -> ValueKind:
    span = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Wrong(f"{shown(value)} is not {span}")
        _must(value >= low and (high is None or value <= high), value, span)
        return value

    return ValueKind(span.removeprefix("a "), read, _bounded("integer", low, high))


def number(low: float, high: float | None = None) -> ValueKind:
    span = f"a number from {low:g} to {high:g}" if high is not None else f"a number of at least {low:g}"

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong(f"{shown(value)} is not {span}")
        _must(low <= value <= (high if high is not None else float("inf")) and value != float("inf"), value, span)
        return float(value)

    return ValueKind(span.removeprefix("a "), read, _bounded("number", low, high))


UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN = re.compile(r"-?(?:\d{1,9}(?:\.\d{1,6})?(?:ms|s|m|h|d))+\Z")


def duration(low_s: float = 0.0, high_s: float | None = None) -> ValueKind:
    """A span of time with its unit, read into seconds."""

    def read(value: object) -> float:
        right = 'a duration with a unit, such as "10s" or "1m30s"'
        _must(isinstance(value, str) and DURATION_PATTERN.match(value), value, right)
        text = str(value)
        parts = re.findall(r"([\d.]+)(ms|s|m|h|d)", text)
        seconds = sum(float(amount) * UNITS_S[unit] for amount, unit in parts)
        seconds = -seconds if text.startswith("-") else seconds
        _must(seconds >= low_s, value, f"at least {_show_duration(low_s)}")
        _must(high_s is None or seconds <= high_s, value, f"at most {_show_duration(high_s)}")
        return seconds

    return ValueKind("duration", read, {"type": "string", "pattern": r"^-?([0-9.]+(ms|s|m|h|d))+$"}, _show_duration)


def _show_duration(value: object) -> str:
    seconds = float(value) if isinstance(value, int | float) else 0.0
    if seconds < 0:
        return "-" + _show_duration(-seconds)
    if seconds == 0 or seconds % 1:
        return "0s" if seconds == 0 else f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"
    parts = []
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount:
            parts.append(f"{amount:.0f}{unit}")
    return "".join(parts)


DURATION = duration()

SIZE_PATTERN = re.compile(r"(\d{1,18})(Ki|Mi|Gi|Ti|k|M|G|T)?\Z")
SIZE_FACTORS = {
    "": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip


def _read_size(value: object) -> int:
    match = SIZE_PATTERN.match(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if match is None:
        raise Wrong(f'{shown(value)} is not a size such as "10Mi" or "2Gi"')
    return int(match[1]) * SIZE_FACTORS[match[2] or ""]


def _show_size(value: object) -> str:
    size = value if isinstance(value, int) else 0
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size and size % SIZE_FACTORS[unit] == 0:
            return f"{size // SIZE_FACTORS[unit]}{unit}"
    return str(size)


SIZE = ValueKind("size", _read_size, {"type": ["string", "integer"]}, _show_size)


PERCENT_PATTERN = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%\Z")


def _read_threshold(value: object) -> str:
    right = 'a size or number such as "500Mi", or a share from "0%" to "100%"'
    found = PERCENT_PATTERN.match(value) if isinstance(value, str) else None
    if found is None:
        try:
            return str(_read_size(value))
        except Wrong:
            raise Wrong(f"{shown(value)} is not {right}") from None
    _must(float(found[1]) <= 100, value, right)
    return found[0]


def _show_threshold(value: object) -> object:
    text = str(value)
    return text if text.endswith("%") else _show_size(int(text))


THRESHOLD = ValueKind("size or percentage", _read_threshold, {"type": ["string", "integer"]}, _show_threshold)


def _matching(name: str, pattern: str, right: str) -> ValueKind:
    compiled = re.compile(pattern + r"\Z")

    def read(value: object) -> str:
        _must(isinstance(value, str) and compiled.match(value), value, right)
        return str(value)

    return ValueKind(name, read, {"type": "string", "pattern": f"^{pattern}$"})


DNS_NAME = _matching(
    "DNS name",
    r"(?=.{0,253}\Z)(?:|[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*)",
    "a DNS name in lower case, such as node-1.example",
)
RELATIVE_NAME = _matching(
    "name", r"(?!.*\.\.)[A-Za-z0-9][-A-Za-z0-9_./]{0,200}", "a name of letters, digits and - _ . / that begins with one"
)
SYSCTL = _matching(
    "sysctl",
    r"[a-z0-9](?:[-a-z0-9_./]{0,251}[a-z0-9])?(?:[./]\*|\*)?",
    "a sysctl such as net.core.somaxconn or net.core.*",
)
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
SERVICE_NAME = _matching("namespace/name", rf"{_LABEL}/{_LABEL}", "a Service, such as kube-system/kube-dns")
MAYBE_SERVICE_NAME = _matching(
    "namespace/name or empty", rf"(?:{_LABEL}/{_LABEL})?", "a Service, such as ns/name, or empty"
)
MAYBE_LABEL = _matching(
    "label value or empty", r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", "a label's value, or empty"
)
MAYBE_INTERFACE = _matching(
    "interface or empty",
    r"(?!\.{1,2}\Z)(?:[A-Za-z0-9_.:@+-]{1,15})?",
    "the name of an interface, of up to 15 signs, or empty",
)
CPU = _matching("CPU quantity", r"\d{1,9}(?:\.\d{1,3}|m)?", 'a number of CPUs, such as "4" or "500m"')


def _read_endpoint(value: object) -> str:
    text = _read_text(value)
    right = "a unix socket, such as unix:///run/containerd/containerd.sock"
    _must(re.match(r"unix:///[^\s]+\Z", text) or re.match(r"/[^\s]+\Z", text), value, right)
    text = text.removeprefix("unix://")
    _must(len(text.encode()) <= 107, value, "within the 107 bytes a unix socket path may have")
    return f"unix://{text}"


ENDPOINT = ValueKind("unix endpoint", _read_endpoint, {"type": "string"})


def _read_address(value: object) -> str:
    text = _read_text(value)
    if not text:
        return ""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    right = 'host:port with an IP address, such as "127.0.0.1:10241", or empty for off'
    _must(colon and port.isdecimal() and 0 <= int(port[:6]) <= 65535, value, right)
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise Wrong(f"{shown(value)} is not {right}") from error
    return text


ADDRESS = ValueKind("host:port", _read_address, {"type": "string"})


def _read_collector(value: object) -> str:
    text = _read_text(value)
    right = "http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317, or empty for off"
    _must(not text or re.match(r"https?://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):\d{1,5}\Z", text), value, right)
    _must(not text or 0 < int(text.rpartition(":")[2]) <= 65535, value, right)
    return text


COLLECTOR = ValueKind("http://host:port", _read_collector, {"type": "string"})


def _read_ending(value: object) -> str:
    text = _read_text(value)
    word, sign, wait = text.partition(",")
    right = 'never, on-endpoint-removal or on-endpoint-removal,DURATION, such as "on-endpoint-removal,30s"'
    _must(text == "never" or word == "on-endpoint-removal", value, right)
    try:
        _must(not sign or duration(0, 86400).read(wait.strip()) is not None, value, right)
    except Wrong as error:
        raise Wrong(f"{shown(value)} is not {right}, of at most 24h") from error
    return text


ENDING = ValueKind("never or on-endpoint-removal[,DURATION]", _read_ending, {"type": "string"})


def _parsed(name: str, parse: Callable[[str], object], right: str) -> ValueKind:
    def read(value: object) -> str:
        try:
            return str(parse(_read_text(value)))
        except ValueError as error:
            raise Wrong(f"{shown(value)} is not {right}") from error

    return ValueKind(name, read, {"type": "string"})


IP = _parsed("IP", ipaddress.ip_address, "an IP address")
CIDR = _parsed("CIDR", ipaddress.ip_network, "a network such as 10.0.0.0/8, with no host bits set")


def choice(*words: str) -> ValueKind:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            hint = suggestion(value, words) if isinstance(value, str) else ""
            raise Wrong(f"{shown(value)} is not one of {', '.join(words)}{hint}")
        return value

    return ValueKind(" or ".join(words), read, {"enum": list(words)})


def either(word: str, kind: ValueKind) -> ValueKind:
    def read(value: object) -> object:
        if value == word:
            return word
        try:
            return kind.read(value)
        except Wrong as error:
            raise Wrong(f'{error}, and not "{word}"') from error

    def show(value: object) -> object:
        return word if value == word else kind.show(value)

    return ValueKind(f"{kind.name} or {word}", read, {"anyOf": [{"const": word}, kind.schema]}, show)


def list_of(kind: ValueKind, plural: str) -> ValueKind:
    def read(value: object) -> tuple[object, ...]:
        _must(isinstance(value, list), value, f"a list of {plural}")
        items: list[object] = value if isinstance(value, list) else []
        return tuple(_inner(kind, item, f"item {index}") for index, item in enumerate(items))

    def show(value: object) -> list[object]:
        return [kind.show(item) for item in value] if isinstance(value, tuple | list) else []

    return ValueKind(f"list of {plural}", read, {"type": "array", "items": kind.schema}, show)


def map_of(kind: ValueKind, name: str) -> ValueKind:
    def read(value: object) -> dict[str, object]:
        _must(isinstance(value, dict), value, f"a map {name}")
        entries: dict[str, object] = value if isinstance(value, dict) else {}
        return {key: _inner(kind, item, key) for key, item in entries.items()}

    def show(value: object) -> dict[str, object]:
        return {key: kind.show(item) for key, item in value.items()} if isinstance(value, dict) else {}

    return ValueKind(f"map {name}", read, {"type": "object", "additionalProperties": kind.schema}, show)


def record_of(**fields: ValueKind) -> ValueKind:
    """A small map with fixed keys, all of them required; it is read into a tuple of pairs."""
    return _record("a map of " + " and ".join(fields), {}, fields)


def record_with(defaults: Mapping[str, object], **fields: ValueKind) -> ValueKind:
    """A small map with fixed keys; those with a default may be left out. It is read into a tuple of pairs."""
    needed = [key for key in fields if key not in defaults]
    return _record(f"a map with {' and '.join(needed or ['some'])} out of {', '.join(fields)}", defaults, fields)


def _record(right: str, defaults: Mapping[str, object], fields: Mapping[str, ValueKind]) -> ValueKind:
    needed = [key for key in fields if key not in defaults]

    def read(value: object) -> tuple[tuple[str, object], ...]:
        _must(isinstance(value, dict), value, right)
        entries: dict[str, object] = value if isinstance(value, dict) else {}
        for key in entries:
            _must(key in fields, key, f"a key of {right}{suggestion(key, fields)}")
        for key in needed:
            _must(key in entries, value, f"{right}; {key} is missing")
        return tuple(
            (key, _inner(kind, entries[key], key) if key in entries else defaults[key]) for key, kind in fields.items()
        )

    def show(value: object) -> dict[str, object]:
        pairs = value if isinstance(value, tuple) else ()
        return {key: fields[key].show(item) for key, item in pairs if item is not None}

    properties = {key: kind.schema for key, kind in fields.items()}
    schema: JsonSchema = {
        "type": "object", "properties": properties, "required": needed, "additionalProperties": False,
    }  # fmt: skip
    return ValueKind(right.removeprefix("a "), read, schema, show)


def _inner(kind: ValueKind, value: object, place: str) -> object:
    try:
        return kind.read(value)
    except Wrong as error:
        raise Wrong(f"{printable(place)}: {error}") from error
