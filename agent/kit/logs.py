# SPDX-License-Identifier: Apache-2.0
"""Logs: static event names with fields, klog's levels, one line per event, repeated failures collapsed.

Never: formats a message from data; what varies goes into fields. An event carries its level as `v`; warnings and errors
are always shown.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Protocol

import structlog

from agent.model.finding import printable


class Output(Protocol):
    """A text stream, as far as a log needs it."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def fileno(self) -> int: ...

    def isatty(self) -> bool: ...


EventFields = MutableMapping[str, object]
Renderer = Callable[[object, str, EventFields], str | bytes]

DEFAULT_LEVEL = {"debug": 4, "info": 2, "warning": 0, "error": 0, "critical": 0}
# A line that begins with one of these in angle brackets has it in the journal, where `journalctl -p` asks for it.
JOURNAL_LEVEL = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
REMEMBERED_FAILURES = 1000
FORGET_AFTER_S = 600.0


class Levels:
    """How much is logged, per plane. Changed by configuration and by the API while the process runs."""

    def __init__(self, verbosity: int = 2, planes: Mapping[str, int] | None = None) -> None:
        self.verbosity = verbosity
        self.planes: Mapping[str, int] = dict(planes or {})

    def of(self, plane: str) -> int:
        return self.planes.get(plane, self.verbosity)

    def filter(self, _logger: object, method: str, fields: EventFields) -> EventFields:
        level = fields.pop("v", DEFAULT_LEVEL.get(method, 2))
        plane = str(fields.setdefault("plane", "daemon"))
        if isinstance(level, int) and level > self.of(plane):
            raise structlog.DropEvent
        fields["level"] = method
        return fields


class RepeatCollapse:
    """Processor: of a failure that repeats unchanged, show occurrence 1, 2, 4, 8, … with the count so far."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._seen: OrderedDict[tuple[object, ...], tuple[int, float]] = OrderedDict()

    def __call__(self, _logger: object, method: str, fields: EventFields) -> EventFields:
        # An answer to somebody who asked for something is shown every time.
        if fields.pop("is_answer", False) or method not in ("warning", "error"):
            return fields
        key = tuple((name, str(value)) for name, value in fields.items() if not isinstance(value, float))
        now_s = self._monotonic_s()
        count, last_s = self._seen.get(key, (0, now_s))
        count = 1 if now_s - last_s > FORGET_AFTER_S else count + 1
        self._seen[key] = (count, now_s)
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED_FAILURES:
            self._seen.popitem(last=False)
        if count & (count - 1):
            raise structlog.DropEvent
        if count > 1:
            fields["repeated"] = count
        return fields


def _make_printable(_logger: object, _method: str, fields: EventFields) -> EventFields:
    """Processor: callers, images and runtimes chose some of these texts, and a terminal obeys what it is shown."""
    for name, value in fields.items():
        text = str(value)
        if not text.isprintable():
            fields[name] = "\n".join(map(printable, text.split("\n"))) if name == "exception" else printable(text)
    return fields


def _add_timestamp(_logger: object, _method: str, fields: EventFields) -> EventFields:
    """Processor: RFC 3339 in UTC with milliseconds, as the first field."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    return {"time": now, "level": fields.pop("level", ""), "plane": fields.pop("plane", ""), **fields}


def is_journal(out: Output) -> bool:
    """systemd names the stream that it gave the process; a file or pipe that took its place has another number."""
    try:
        found = os.fstat(out.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _with_journal_level(render: Renderer) -> Renderer:
    def render_for_journal(logger: object, method: str, fields: EventFields) -> str:
        prefix = f"<{JOURNAL_LEVEL.get(method, 6)}>"
        return prefix + str(render(logger, method, fields)).replace("\n", f"\n{prefix}")

    return render_for_journal


class _LineWriter:
    """What structlog calls with the finished line, whatever its level."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    debug = info = warning = error = critical = msg


def configure_logs(levels: Levels, log_format: str, monotonic_s: Callable[[], float], out: Output) -> None:
    """Set structlog up for the process. `auto` is console on a terminal, else logfmt."""
    if log_format == "auto":
        log_format = "console" if out.isatty() else "logfmt"
    renderer: Renderer
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    elif log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=out.isatty(), timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.LogfmtRenderer(
            key_order=["time", "level", "plane", "event"], bool_as_flag=False
        )
    if is_journal(out):
        renderer = _with_journal_level(renderer)
    structlog.configure(
        processors=[
            levels.filter,
            RepeatCollapse(monotonic_s),
            structlog.processors.format_exc_info,
            _make_printable,
            _add_timestamp,
            renderer,
        ],
        wrapper_class=structlog.BoundLogger,
        logger_factory=lambda *_: _LineWriter(out),
        cache_logger_on_first_use=False,
    )
