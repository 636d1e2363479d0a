# SPDX-License-Identifier: Apache-2.0
"""Who may use which image, and which pulls were under way: the records that survive the process.

One file per intent and per image below `pulling/` and `pulled/`; an intent is on the disk before the first byte is
asked for. Never: holds a password: only keyed hashes. Source of behaviour: KEP-2535.
"""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.access.grants import Claim, Proofs, after_pull
from agent.images.ports import Files
from agent.images.run.state import decode_state, encode_state, keep_aside
from agent.model.images.credential import Credential

log = structlog.get_logger(plane="images")

PULLING, PULLED = "pulling", "pulled"
KEY_FILE = "hash.key"
KEY_BYTES = 32


class IntentState(msgspec.Struct, frozen=True):
    reference: str


class ImageRecordState(msgspec.Struct, frozen=True):
    image_id: str
    updated_s: float
    repositories: dict[str, Proofs] = {}
    preloaded: frozenset[str] = frozenset()
    """Names that it had before the first pull of ours: they stay everybody's."""


class AccessRecords:
    """All records of the node. Call `load` before anything else."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._intents: Counter[str] = Counter()
        self._left_over: set[str] = set()
        self._images: dict[str, ImageRecordState] = {}
        self._unreadable: set[str] = set()
        self._key = b""

    async def load(self) -> None:
        """Read what is on the disk. Files that cannot be read are kept aside; their images have to be verified."""
        self._key = await self._load_key()
        self._left_over = {intent.reference for intent in await self._read(PULLING, IntentState)}
        self._images = {record.image_id: record for record in await self._read(PULLED, ImageRecordState)}

    async def _load_key(self) -> bytes:
        key = await self._files.read(KEY_FILE)
        if key is None or len(key) != KEY_BYTES:
            key = secrets.token_bytes(KEY_BYTES)
            await self._files.write(KEY_FILE, key)
        return key

    async def _read(self, folder: str, shape: type[msgspec.Struct]) -> list:  # type: ignore[type-arg]
        found = []
        for name, content in (await self._files.read_folder(folder)).items():
            try:
                found.append(decode_state(shape.__name__, content, shape))
            except ValueError as error:
                self._unreadable.add(name)
                await keep_aside(self._files, f"{folder}/{name}", error)
        return found

    def claim(self, claim: Claim) -> Claim:
        return tuple((secret, self._keyed(digest)) for secret, digest in claim)

    def is_pulled_by_us(self, image_id: str, reference: str) -> bool:
        """Whether the image came by a pull of ours, finished or not, under that name. A record that was lost counts
        too."""
        record = self._images.get(image_id)
        if record is not None and reference in record.preloaded:
            return False
        return (
            image_id in self._images
            or reference in self._left_over
            or self._intents[reference] > 0
            or _file_name(image_id) in self._unreadable
        )

    def proofs(self, image_id: str, repo: str) -> Proofs | None:
        record = self._images.get(image_id)
        return record.repositories.get(repo) if record else None

    async def begin(self, reference: str) -> None:
        """A pull begins. Raises OSError: without an intent on the disk a crash would make the image look preloaded."""
        if not self._intents[reference] and reference not in self._left_over:
            name = f"{PULLING}/{_file_name(reference)}"
            await self._files.write(name, encode_state(IntentState.__name__, IntentState(reference)))
        self._intents[reference] += 1

    async def succeed(
        self, reference: str, repo: str, image_id: str, used: Credential | None, now_s: float,
        names: Collection[str] = (),
    ) -> None:  # fmt: skip
        """A pull worked: the record first, then the end of the intent. `names` are those that the image has without
        this pull."""
        before = self._images.get(image_id)
        if before is None:
            is_known = _file_name(image_id) not in self._unreadable
            foreign = {name for name in names if name == reference or not self._is_under_way(name)}
            foreign -= self._left_over
            before = ImageRecordState(image_id, now_s, {}, frozenset(foreign) if is_known else frozenset())
        elif reference not in names:
            before = replace(before, preloaded=before.preloaded - {reference})
        digest = self._keyed(used.hash()) if used is not None else ""
        proofs = after_pull(self.proofs(image_id, repo), used, digest, now_s)
        await self._store(before, image_id, repo, proofs, now_s)
        self._left_over.discard(reference)
        await self._end(reference)

    async def fail(self, reference: str) -> None:
        """A pull failed or was given up. An intent that a crash left stays until a pull worked."""
        await self._end(reference)

    async def note(self, image_id: str, repo: str, proofs: Proofs, now_s: float) -> None:
        await self._store(self._images.get(image_id), image_id, repo, proofs, now_s)

    async def forget_absent(self, present: Collection[str], listed_at_s: float) -> Sequence[str]:
        """Drop the records of images that a list, begun at that time, no longer has. Answers with their ids."""
        gone = [
            one.image_id for one in self._images.values() if one.image_id not in present and one.updated_s < listed_at_s
        ]
        for image_id in gone:
            del self._images[image_id]
            await self._remove(f"{PULLED}/{_file_name(image_id)}")
        return gone

    def _is_under_way(self, reference: str) -> bool:
        return self._intents.get(reference, 0) > 0

    async def _end(self, reference: str) -> None:
        self._intents[reference] -= 1
        if self._intents[reference] <= 0:
            del self._intents[reference]
            if reference not in self._left_over:
                await self._remove(f"{PULLING}/{_file_name(reference)}")

    async def _store(
        self, before: ImageRecordState | None, image_id: str, repo: str, proofs: Proofs, now_s: float
    ) -> None:
        repositories = {**(before.repositories if before else {}), repo: proofs}
        record = ImageRecordState(image_id, now_s, repositories, before.preloaded if before else frozenset())
        self._images[image_id] = record
        self._unreadable.discard(_file_name(image_id))
        await self._write(f"{PULLED}/{_file_name(image_id)}", record)

    async def _write(self, name: str, value: msgspec.Struct) -> None:
        try:
            await self._files.write(name, encode_state(type(value).__name__, value))
        except OSError as error:
            log.warning("image_record_not_written", file=name, error=error.strerror)

    async def _remove(self, name: str) -> None:
        try:
            await self._files.remove(name)
        except OSError as error:
            log.warning("image_record_not_removed", file=name, error=error.strerror)

    def _keyed(self, digest: str) -> str:
        return hmac.new(self._key, digest.encode(), hashlib.sha256).hexdigest()


def _file_name(text: str) -> str:
    return f"sha256-{hashlib.sha256(text.encode()).hexdigest()}.json"
