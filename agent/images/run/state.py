# SPDX-License-Identifier: Apache-2.0
"""Typed state in files: reading what an earlier process, a crash or a stranger left, and writing it whole.

What cannot be read is kept aside with a warning, and learnt again.
"""

from typing import Generic, TypeVar

import msgspec
import structlog

from agent.images.ports import Files

log = structlog.get_logger(plane="images")

FORMAT = "kepd.images/v1"
State = TypeVar("State")


class _Envelope(msgspec.Struct, Generic[State]):
    format: str
    kind: str
    content: State


def encode_state(kind: str, content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"format": FORMAT, "kind": kind, "content": content}), indent=1)


def decode_state(kind: str, content: bytes, shape: type[State]) -> State:
    """The value in a file. Raises ValueError."""
    envelope = msgspec.json.decode(content, type=_Envelope[shape])  # type: ignore[valid-type]
    if envelope.format != FORMAT or envelope.kind != kind:
        raise ValueError(f"it is not a {kind} of {FORMAT}")
    result: State = envelope.content
    return result


class StateFile(Generic[State]):
    def __init__(self, files: Files, name: str, kind: str, shape: type[State]) -> None:
        self._files = files
        self._name = name
        self._kind = kind
        self._shape = shape
        self._written: bytes | None = None

    async def load(self) -> State | None:
        """What is there; None if there is nothing that can be used."""
        try:
            content = await self._files.read(self._name)
        except OSError as error:
            log.warning("image_state_unreadable", file=self._name, error=error.strerror)
            return None
        if content is None:
            return None
        try:
            value = decode_state(self._kind, content, self._shape)
        except ValueError as error:
            await keep_aside(self._files, self._name, error)
            return None
        self._written = content
        return value

    async def save(self, value: State) -> None:
        """Write it, unless it is there already. A disk that refuses is logged, and tried again with the next value."""
        content = encode_state(self._kind, value)
        if content == self._written:
            return
        try:
            await self._files.write(self._name, content)
        except OSError as error:
            log.warning("image_state_not_written", file=self._name, error=error.strerror)
            return
        self._written = content


async def keep_aside(files: Files, name: str, error: ValueError) -> None:
    """Take an unusable file out of the way. The log has the cause, without what is in the file."""
    try:
        place = await files.set_aside(name)
    except OSError as failure:
        place = f"(it stays, {failure.strerror})"
    log.warning("image_state_set_aside", file=name, kept_as=place, cause=type(error).__name__)
