# SPDX-License-Identifier: Apache-2.0
"""Typed state in files: reading what an earlier process, a crash or a stranger left, and writing it whole.

What cannot be read is kept aside with a warning, and learnt again. Of images it is remembered since when they are here,
when they were last used and where they came from; at most once a minute and at the end, so that ages survive a restart.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
import structlog

from agent.images.ports import Files
from agent.model.clock import Clock
from agent.model.text.json_text import decode_json
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")

FORMAT = "kepd.images/v1"
State = TypeVar("State")
FILE = "images.json"
KIND = "ImageHistory"
SAVE_EVERY_S = 60.0


class _Envelope(msgspec.Struct, Generic[State]):
    format: str
    kind: str
    content: State


def encode_state(kind: str, content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"format": FORMAT, "kind": kind, "content": content}), indent=1)


def decode_state(kind: str, content: bytes, shape: type[State]) -> State:
    """The value in a file. Raises ValueError."""
    envelope = decode_json(content, _Envelope[shape])  # type: ignore[valid-type]
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


class ImageMemory(msgspec.Struct, frozen=True, gc=False):
    """One image. Times are wall time; `last_used_s` 0 = never."""

    first_seen_s: float
    last_used_s: float = 0.0
    size_bytes: int = 0
    source: str = ""
    names: tuple[str, ...] = ()


class ImageHistory:
    """All images ever seen that are still here. Changed by the collector alone, apart from `pulled`."""

    def __init__(self, files: Files, *, clock: Clock) -> None:
        self._file: StateFile[dict[str, ImageMemory]] = StateFile(files, FILE, KIND, dict[str, ImageMemory])
        self._clock = clock
        self._images: dict[str, ImageMemory] = {}
        self._sources: dict[str, str] = {}
        self._saved_s: float | None = None
        self._latest_s = 0.0

    @property
    def images(self) -> Mapping[str, ImageMemory]:
        return self._images

    async def load(self) -> None:
        self._images = await self._file.load() or {}
        self._latest_s = max((max(one.first_seen_s, one.last_used_s) for one in self._images.values()), default=0.0)

    async def save(self, *, is_last: bool = False) -> None:
        now_s = self._clock.now_s()
        if is_last or self._saved_s is None or now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            await self._file.save(dict(self._images))

    def now_s(self) -> float:
        """Wall time that never goes back, so that a clock that is set does not make images younger."""
        self._latest_s = max(self._latest_s, self._clock.wall_s())
        return self._latest_s

    def pulled(self, image_id: str, source: str) -> None:
        if image_id not in self._images:
            self._sources[image_id] = source

    def observe(self, images: Sequence[pb.Image], used: Collection[str], created: Mapping[str, float]) -> None:
        """A look at the node. `created`: since when the runtime has an image, by id or name, for new ones."""
        now_s = self.now_s()
        known = self._images
        self._images = {}
        for image in images:
            memory = known.get(image.id)
            names = (*image.repo_tags, *image.repo_digests)
            if memory is None:
                times = [created[name] for name in (image.id, *names) if created.get(name)]
                source = self._sources.pop(image.id, "preloaded")
                memory = ImageMemory(min([*times, now_s]), source=source)
            last_used_s = now_s if image.id in used else memory.last_used_s
            self._images[image.id] = msgspec.structs.replace(
                memory, last_used_s=last_used_s, size_bytes=image.size, names=names
            )
        self._sources = {key: source for key, source in self._sources.items() if key not in self._images}
