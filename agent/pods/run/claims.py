# SPDX-License-Identifier: Apache-2.0
"""Claims of storage at work: binds each to what serves it, and lets go of what nobody claims any more.

A binding is written down before a directory is made, and struck out only once the directory is gone, so none is
forgotten by a kepd that dies. A directory is removed only where its class says so, kepd made it, and no pod uses it.
Never: touches what a volume of a manifest has.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import rung
from agent.model.event import Event
from agent.model.finding import printable
from agent.model.pods.pod import PodSpec
from agent.model.quantity import binary_quantity
from agent.model.refused import Refused
from agent.model.text.json_text import decode_record
from agent.pods.run.disk.claim_directories import claim_bytes, is_there, remove_claim
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.owners import Owners, contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.workloads.known import KeptRecords
from agent.pods.runtime.environment import ClaimPlace
from agent.pods.runtime.volume_plan import claims_of
from agent.pods.storage.binding import FORMAT, ClaimRecord, Storage, StorageSettings, Unbound, bind_all
from agent.pods.storage.objects import CLAIM, CLASS, ONE_POD, OWN_CLASS, VOLUME, Key, WantedClaim, bytes_of
from agent.pods.storage.shown import claim_status, made_objects, volume_status

log = structlog.get_logger(plane="pods")

FOLDER = "claims"
RETRY_S, MEASURE_S = 5.0, 300.0


class Claims:
    def __init__(self, context: PodDependencies, owners: Owners, is_unread: Callable[[str], bool]) -> None:
        self._context, self._owners, self._is_unread = context, owners, is_unread
        self._records = KeptRecords(context.records, FOLDER, _decode)
        self._storage = Storage()
        self._unbound: dict[Key, Unbound] = {}
        self._lock = asyncio.Lock()
        self._bell = asyncio.Event()
        self._due_s: float | None = None
        self._has_leaving = False
        self._begun: set[str] = set()
        """Pods that may have their claims mounted, by uid; of those that an earlier kepd began, sandboxes tell."""
        self._used: dict[Key, int] = {}
        """Bytes in directories, as they were measured last."""
        self.files: Mapping[str, bytes] = {}
        """Objects that no manifest has, by who made them. Read in threads, so it is replaced whole."""

    async def load(self) -> None:
        await self._records.load()
        self._unbound.clear()
        self._show()

    def follow(self, storage: Storage) -> None:
        """The manifests say this now."""
        if storage != self._storage:
            self._storage = storage
            self._show()
        self._bell.set()

    def touch(self) -> None:
        """A pod may be over or gone, and what it used may be let go."""
        if self._has_leaving:
            self._bell.set()

    async def measure(self) -> None:
        """Until cancelled. A size holds nobody, so whoever has more than was asked for is told of."""
        while True:
            await self._context.clock.sleep(MEASURE_S)
            for record in self._records.all():
                if record.is_directory and not record.is_released and self._users(record.key):
                    with contained(record.text, "measure its claim"):
                        await self._measure(record)

    async def _measure(self, record: ClaimRecord) -> None:
        used, size = await asyncio.to_thread(claim_bytes, record.path), bytes_of(record.size)
        was_over = self._used.get(record.key, 0) > size
        self._used[record.key] = used
        if used > size and not was_over:
            text = f"it has {binary_quantity(used)}, and asked for {record.size}; nothing holds it to that"
            self._tell(record.key, "ClaimOverSize", text, is_warning=True)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._bell.clear()
            self._due_s = None
            with contained("claims", "carry them out"):
                await self._settle()
            await rung(self._bell, self._context.clock, self._due_s)

    async def _settle(self) -> None:
        """Everything once: volumes of manifests are taken, and what is claimed no more is let go."""
        self._has_leaving = False
        self._unbound = {key: why for key, why in self._unbound.items() if key in self._storage.claims}
        async with self._lock:
            gone = [record.key for record in self._records.all() if await self._let_go(record)]
            try:
                bound = await self._bind(self._storage.claims.values(), is_used=False)
            except OSError as error:
                log.warning("claims_not_bound", error=str(error), effect="they wait")
                bound, self._due_s = [], self._context.clock.now_s() + RETRY_S
        self._show()
        self._retry({*gone, *bound})

    def _retry(self, keys: Collection[Key]) -> None:
        """Pods that wait for one of these claims try again."""
        for keeper in tuple(self._owners.keepers.values()) if keys else ():
            pod = keeper.run.pod
            with contained(pod.key, "try for its claims"):
                if any((CLAIM, pod.namespace, name) in keys for name in claims_of(pod)):
                    keeper.sources_changed()

    async def hold(self, pod: PodSpec) -> None:
        """What serves the claims of a pod that is about to use them. Raises OSError."""
        keys = [(CLAIM, pod.namespace, name) for name in sorted(claims_of(pod))]
        if not keys:
            return
        known = {key: self._records.of(key) for key in keys}
        missing = [key for key, record in known.items() if record is None or record.is_released]
        if claims := [self._storage.claims[key] for key in missing if key in self._storage.claims]:
            await self._make(claims)
        self._begun &= {run.pod.uid for run in self._runs}
        if not any(self._why_not(pod, key) for key in keys):
            self._begun.add(pod.uid)

    async def make(self, claims: Sequence[WantedClaim]) -> None:
        """Claims of a StatefulSet, for pods that are about to begin. Raises OSError."""
        if claims:
            await self._make([self._storage.claims.get(claim.key, claim) for claim in claims])

    async def _make(self, claims: Sequence[WantedClaim]) -> None:
        async with self._lock:
            for claim in claims:
                record = self._records.of(claim.key)
                if record is not None and record.is_leaving:
                    await self._let_go(record)
            await self._bind(claims, is_used=True)
        self._show()

    async def _bind(self, claims: Iterable[WantedClaim], *, is_used: bool) -> list[Key]:
        """Those that are served now and were not before. Raises OSError."""
        records = {record.key: record for record in self._records.all()}
        staying = [claim for claim in claims if claim.key not in records or not records[claim.key].is_leaving]
        if not staying:
            return []
        plan = partial(bind_all, staying, self._storage, self._settings, records, is_used=is_used)
        bound = []
        for claim, found in await asyncio.to_thread(lambda: list(plan())):
            known = records.get(claim.key)
            if isinstance(found, Unbound):
                self._tell_unbound(claim, found)
                continue
            self._unbound.pop(claim.key, None)
            if known is not None and not known.is_released:
                await self._records.keep(found)
                continue
            created_s = known.created_s if known is not None else self._context.clock.wall_s()
            is_own = found.is_own and (known is not None or not await asyncio.to_thread(is_there, found.path))
            await self._records.keep(replace(found, created_s=created_s, is_own=is_own))
            log.info("claim_bound", claim=found.text, volume=found.volume, path=found.path)
            bound.append(claim.key)
        return bound

    @property
    def _settings(self) -> StorageSettings:
        now = self._context.settings()
        return StorageSettings(
            now.pods.claim_directory, now.node, now.labels, takes_any_class=now.pods.claim_classes == "any"
        )

    def _tell_unbound(self, claim: WantedClaim, why: Unbound) -> None:
        if self._unbound.get(claim.key) != why:
            self._unbound[claim.key] = why
            self._tell(claim.key, why.reason, why.text, is_warning=why.reason.endswith(("Binding", "Failed")))

    def _tell(self, key: Key, reason: str, text: str, *, is_warning: bool = False) -> None:
        self._context.tell(
            Event(
                is_warning=is_warning, reason=reason, message=printable(text), plane="pods", namespace=key[1],
                object_name=key[2], object_kind=key[0],
            )
        )  # fmt: skip

    async def _let_go(self, record: ClaimRecord) -> bool:
        """Of one that nobody claims, or whose content is gone; whether it is."""
        volume = self._storage.volumes.get(record.volume)
        if record.is_released:
            is_over = volume is None if not record.is_directory else not await asyncio.to_thread(is_there, record.path)
            if is_over and not self._is_unread(record.file):
                await self._records.forget(record.key)
            return False
        is_claimed = record.key in self._storage.claims or bool(record.maker) or self._is_unread(record.file)
        if is_claimed and not record.is_leaving:
            return False
        if self._users(record.key):
            self._has_leaving = True
            return False
        await self._release(record, removes=record.deletes)
        return True

    async def _release(self, record: ClaimRecord, *, removes: bool) -> None:
        try:
            if record.is_directory and record.is_own and removes:
                await asyncio.to_thread(remove_claim, record.path)
                await self._records.forget(record.key)
                log.info("claim_removed", claim=record.text, path=record.path)
            else:
                await self._records.keep(replace(record, is_released=True, is_leaving=False))
                log.info("claim_released", claim=record.text, path=record.path, effect="what is in it is kept")
        except OSError as error:
            text = f"{record.path} cannot be let go: {error.strerror or error}; tried again in {RETRY_S:.0f} s"
            self._tell(record.key, "VolumeFailedDelete", text, is_warning=True)
            self._due_s = self._context.clock.now_s() + RETRY_S

    async def remove(self, directories: Iterable[str]) -> None:
        """What a StatefulSet made and wants to go, with what is in it. Raises OSError."""
        async with self._lock:
            for directory in directories:
                path = PurePath(directory)
                record = self._records.of((CLAIM, path.parent.name, path.name))
                if record is not None and self._users(record.key):
                    # The last of them takes it along.
                    await self._records.keep(replace(record, is_leaving=True, is_own=True, deletes=True))
                    self._has_leaving = True
                    continue
                if record is not None and not record.is_directory:
                    await self._records.keep(replace(record, is_released=True, is_leaving=False))
                    continue
                await asyncio.to_thread(remove_claim, directory)
                if record is not None:
                    await self._records.forget(record.key)
        self._show()

    async def drop(self, key: Key) -> bool:
        """Somebody deletes what no manifest has; whether it was something of that sort. Raises Refused."""
        (kind, _, name), storage = key, self._storage
        if key in storage.claims or (kind == VOLUME and name in storage.volumes):
            return False
        if kind == CLASS and name == OWN_CLASS and name not in storage.classes:
            raise Refused("precondition", f"{kind} {name} is kepd's own; a StorageClass of yours may be the default")
        records = self._records.all()
        record = next((one for one in records if (one.volume == name if kind == VOLUME else one.key == key)), None)
        if kind not in (CLAIM, VOLUME) or record is None:
            return False
        async with self._lock:
            if kind == CLAIM:
                await self._records.keep(replace(record, is_leaving=True))
            elif record.is_released:
                await self._records.forget(record.key)
            else:
                raise Refused("precondition", f"{kind} {name} serves the claim {record.text}; delete that first")
        self._show()
        self._bell.set()
        return True

    @property
    def _runs(self) -> list[LivePod]:
        return [keeper.run for keeper in tuple(self._owners.keepers.values())]

    def _users(self, key: Key) -> list[str]:
        """Pods that use a claim, by their uids. Who only waits for it uses nothing."""
        return [
            run.pod.uid
            for run in self._runs
            if run.pod.namespace == key[1] and key[2] in claims_of(run.pod) and self._has_begun(run)
        ]

    def _has_begun(self, run: LivePod) -> bool:
        return run.memory.outcome is None and (run.pod.uid in self._begun or bool(run.seen.sandboxes))

    def places(self, pod: PodSpec) -> Mapping[str, ClaimPlace]:
        """Where the claims of a pod are, by their names. Also asked for in threads."""
        return {name: self._place(pod, (CLAIM, pod.namespace, name)) for name in claims_of(pod)}

    def _place(self, pod: PodSpec, key: Key) -> ClaimPlace:
        why = self._why_not(pod, key)
        record = self._records.of(key)
        if why or record is None:
            return ClaimPlace(why=f'persistentvolumeclaim "{key[2]}" {why}')
        if record.is_directory:
            return ClaimPlace(record.path, is_made=True)
        volume = self._storage.volumes.get(record.volume)
        return ClaimPlace(record.path, volume.check if volume is not None else "Directory")

    def _why_not(self, pod: PodSpec, key: Key) -> str:
        """Empty where the pod may use it; one that runs goes on to use what it has."""
        record, is_claimed = self._records.of(key), key in self._storage.claims
        if record is None or record.is_released:
            unbound = self._unbound.get(key)
            why = f"is not bound: {unbound.text}" if unbound is not None else "is not bound yet"
            return why if is_claimed else "not found"
        if any(run.pod.uid == pod.uid and self._has_begun(run) for run in self._runs):
            return ""
        if record.is_leaving or not (record.maker or is_claimed):
            return "is being deleted, and no new pod gets it"
        if self._is_lost(record):
            return f'has lost its volume "{record.volume}" at {record.path}'
        if ONE_POD in record.modes and any(uid != pod.uid for uid in self._users(key)):
            return f"is of one pod alone ({ONE_POD}), and another uses it"
        return ""

    def _is_lost(self, record: ClaimRecord) -> bool:
        """Its manifest is gone, or means another place now, which has other content."""
        volume = self._storage.volumes.get(record.volume)
        return not record.is_directory and (volume is None or volume.path != record.path)

    @property
    def paths(self) -> frozenset[str]:
        """Paths that pods may change by their claims."""
        return frozenset(record.path for record in self._records.all() if not record.is_released)

    def status(self, key: Key) -> Mapping[str, Any] | None:
        kind, _, name = key
        if kind == CLAIM:
            record = self._records.of(key)
            record = None if record is None or record.is_released else record
            is_lost = record is not None and self._is_lost(record)
            status = claim_status(record, self._unbound.get(key), is_lost=is_lost)
            return status | ({"used": binary_quantity(self._used[key])} if key in self._used else {})
        if kind == VOLUME:
            return volume_status(next((one for one in self._records.all() if one.volume == name), None))
        return None

    def created_s(self, key: Key) -> float:
        if key[0] == VOLUME:
            return next((one.created_s for one in self._records.all() if one.volume == key[2]), 0.0)
        record = self._records.of(key) if key[0] == CLAIM else None
        return record.created_s if record is not None else 0.0

    def _show(self) -> None:
        made: dict[str, list[bytes]] = {}
        for maker, content in made_objects(self._records.all(), self._storage):
            made.setdefault(maker, []).append(msgspec.json.encode(content))
        self.files = {maker: b"\n---\n".join(parts) for maker, parts in made.items()}


def _decode(content: bytes) -> ClaimRecord:
    return decode_record(content, ClaimRecord, FORMAT)
