# SPDX-License-Identifier: Apache-2.0
"""One real pull, from its intent to its record: credentials in turn, deadlines, a runtime that comes back.

A restart of the runtime in the middle is waited for and the same attempt made again; what a deadline or a cancel cuts
off keeps its half-written blobs for an hour, so that the next try resumes.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from enum import Enum, auto

import msgspec
import structlog

from agent.images.access.mirrors import EVERYBODY, MirrorChain, auth_servers, default_chain
from agent.images.ports import Content, ContentStore, ImageRuntime, Leases
from agent.images.queue.deadline import BytesMark, next_check_s, overdue, recent_marks
from agent.images.queue.errors import AttemptFailure, classify
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.settings import ImageSettings
from agent.images.view.texts import without_id_or_size
from agent.model.clock import Clock
from agent.model.images.credential import Credential
from agent.model.images.pull import ErrorClass
from agent.model.images.reference import ImageReference
from agent.model.images.state import PullStage
from agent.model.images.store import expiring
from agent.model.runtime.error import RuntimeCallFailed, Unavailable
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")

RUNTIME_POLL_S = 0.5
# Waits before a pull is made again although the runtime never was away. A quick restart looks like that, and so does a
# snapshotter that is down; after these the pull fails, and the queue backs off.
UNEXPLAINED_WAITS_S = (0.5, 2.0)
# A pull that finds its runtime gone as often as this may be the cause of it.
MOST_RESTARTS = 5
RUNTIME_GONE_S = 600.0
# A blob that arrived damaged is fetched once more.
CORRUPT_TRIES = 2
HOLD_S = 3600.0
FAILED_REF = re.compile(r'failed commit on ref "([a-z]+-sha256:[0-9a-f]{64})": ')
HOLD_LIMIT_S = 0.5
HOLD_PREFIX = "kepd-hold-"


class Sight(Enum):
    """What a runtime that broke off a call looks like afterwards."""

    WAS_THERE = auto()
    CAME_BACK = auto()
    STAYS_AWAY = auto()


class Job(msgspec.Struct):
    """A running flight as its task sees it. Changed by its task and, for `overdue`, by its guard."""

    number: int
    reference: ImageReference
    image: str
    handler: str
    credentials: tuple[Credential, ...]
    target: ImageReference | None = None
    """Where a rule says to pull from."""
    is_target_only: bool = False
    present_id: str = ""
    """Of the image that had the name before."""
    is_content_only: Callable[[], bool] = lambda: False
    """Whether all who want it want what it is made of and no more, at this moment."""
    stage: PullStage = PullStage.RESOLVING
    attempts: int = 0
    overdue: str = ""
    marks: tuple[BytesMark, ...] = ()
    failures: list[AttemptFailure] = msgspec.field(default_factory=list)

    @property
    def registry(self) -> str:
        is_elsewhere = self.target is not None and self.image == self.target.cri_image
        return self.target.asked_host if self.target is not None and is_elsewhere else self.reference.asked_host


class Pulled(msgspec.Struct, frozen=True):
    """A pull that worked. `used` is None for an anonymous one; without an id only content was fetched."""

    image_id: str
    size_bytes: int
    used: Credential | None
    names: tuple[str, ...] = ()
    """Those that the image has now."""


class Attempts:
    def __init__(
        self,
        runtime: ImageRuntime,
        watcher: ProgressWatcher,
        content: Content | None,
        leases: Leases | None,
        *,
        clock: Clock,
        contents: ContentStore | None = None,
        chain_of: Callable[[str], MirrorChain] = default_chain,
    ) -> None:
        self._runtime = runtime
        self._contents = contents
        self._chain_of = chain_of
        self._watcher = watcher
        self._content = content
        self._leases = leases
        self._clock = clock

    async def fetch_content(self, job: Job, settings: ImageSettings) -> Pulled | None:
        """What the image is made of, with the credentials in turn. None: all failed, `job.failures` says how."""
        if self._contents is None:
            job.failures.append(AttemptFailure("this runtime keeps no content without its image"))
            return None
        job.stage = PullStage.DOWNLOADING
        for credential, server in await self._tries(job, settings):
            job.attempts += 1
            try:
                size_bytes = await self._contents.fetch(str(job.reference), credential, server)
                return Pulled("", size_bytes, credential)
            except RuntimeCallFailed as error:
                job.failures.append(_failure(error))
        return None

    async def pull(self, job: Job, settings: Callable[[], ImageSettings]) -> Pulled | None:
        """Try the credentials in turn. None: all failed, `job.failures` says how."""
        for credential, server in await self._tries(job, settings()):
            for _ in range(CORRUPT_TRIES):
                job.attempts += 1
                result = await self._attempt(job, credential, server, settings)
                if isinstance(result, str) or classify(result) is not ErrorClass.CORRUPT:
                    break
                await self._drop_partial(result)
            if isinstance(result, str):
                return await self._verified(job, result, credential)
            job.failures.append(result)
            if job.overdue:
                break
        return None

    async def _tries(self, job: Job, settings: ImageSettings) -> list[tuple[Credential | None, str]]:
        """Credentials with the hosts that may see them, in the order of trying."""
        if not job.credentials:
            return [(None, EVERYBODY)]
        servers: tuple[str, ...] = (EVERYBODY,)
        if settings.keys.auth_scope == "host":
            chain = await asyncio.to_thread(self._chain_of, job.registry)
            servers = auth_servers(chain, settings.keys.mirror_auth)
        return [(credential, server) for credential in job.credentials for server in servers]

    async def _attempt(
        self, job: Job, credential: Credential | None, server: str, settings: Callable[[], ImageSettings]
    ) -> str | AttemptFailure:
        waits_s = iter(UNEXPLAINED_WAITS_S)
        restarts = 0
        while True:
            result = await self._one_call(job, _auth(credential, server), settings)
            if not isinstance(result, Unavailable):
                return result if isinstance(result, str) else _failure(result)
            log.info("image_pull_interrupted", image=job.image, error=result.details)
            match await self._look():
                case Sight.STAYS_AWAY:
                    return _failure(result)
                case Sight.CAME_BACK:
                    restarts += 1
                    if restarts > MOST_RESTARTS:
                        return _failure(result)
                    continue
            wait_s = next(waits_s, None)
            if wait_s is None:
                return _failure(result)
            await self._clock.sleep(wait_s)

    async def _one_call(
        self, job: Job, auth: pb.AuthConfig | None, settings: Callable[[], ImageSettings]
    ) -> str | RuntimeCallFailed:
        async def call() -> str | RuntimeCallFailed:
            try:
                return await self._runtime.pull_image(job.image, auth, handler=job.handler)
            except RuntimeCallFailed as error:
                return error

        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(call(), name=f"pull-call:{job.image}")
            guard = group.create_task(self._guard(job, pulling, settings), name=f"pull-guard:{job.image}")
            await asyncio.wait([pulling])
            guard.cancel()
        if job.overdue:
            return RuntimeCallFailed("PullImage", job.overdue)
        return pulling.result()

    async def _guard(
        self, job: Job, pulling: asyncio.Task[str | RuntimeCallFailed], settings: Callable[[], ImageSettings]
    ) -> None:
        while True:
            rules = settings().deadline
            await self._clock.sleep(next_check_s(rules))
            progress = self._watcher.progress(job.number)
            if progress is None:
                continue
            job.marks = recent_marks(job.marks, progress)
            text = overdue(progress, job.marks, rules, self._clock.now_s(), is_visible=self._watcher.is_visible)
            if text is not None:
                job.overdue = text
                await self.keep_partial(job)
                pulling.cancel()
                return

    async def _look(self) -> "Sight":
        """Whether the runtime was away; waits for its return, but not for ever."""
        give_up_s = self._clock.now_s() + RUNTIME_GONE_S
        is_first = True
        while self._clock.now_s() < give_up_s:
            try:
                await self._runtime.list_images()
            except Unavailable:
                is_first = False
                await self._clock.sleep(RUNTIME_POLL_S)
                continue
            except RuntimeCallFailed:
                pass
            return Sight.WAS_THERE if is_first else Sight.CAME_BACK
        return Sight.STAYS_AWAY

    async def _verified(self, job: Job, image_id: str, used: Credential | None) -> Pulled | None:
        job.stage = PullStage.VERIFYING
        try:
            image = await self._runtime.image_status(image_id, handler=job.handler)
        except RuntimeCallFailed as error:
            job.failures.append(_failure(error))
            return None
        if image is None or not image.size:
            job.failures.append(AttemptFailure(without_id_or_size(job.image)))
            return None
        await self._release_hold(job)
        return Pulled(image.id, image.size, used, (*image.repo_tags, *image.repo_digests))

    async def _drop_partial(self, failure: AttemptFailure) -> None:
        """A bad blob lies there whole; whoever asks next would go on from its end and fail at once."""
        named = FAILED_REF.search(failure.details)
        if self._content is None or named is None:
            return
        try:
            await self._content.abort_ingest(named[1])
        except RuntimeCallFailed as error:
            log.debug("image_partial_not_dropped", error=str(error))

    async def keep_partial(self, job: Job) -> None:
        """Before a call is ended: keep what it has written so far from being thrown away. Never takes long."""
        if self._content is None or self._leases is None:
            return
        try:
            async with asyncio.timeout(HOLD_LIMIT_S):
                refs = self._watcher.refs_of([one.ref for one in await self._content.list_ingests()], job.number)
                if refs:
                    await self._hold(self._leases, _hold_id(job), refs)
        except (RuntimeCallFailed, TimeoutError) as error:
            log.debug("image_partial_not_kept", image=job.image, error=str(error))

    async def _hold(self, leases: Leases, lease_id: str, refs: Sequence[str]) -> None:
        if lease_id in await leases.list_leases():
            await leases.delete_lease(lease_id)
        await leases.create_lease(lease_id, expiring(self._clock.wall_s() + HOLD_S))
        for ref in refs:
            await leases.add_to_lease(lease_id, "ingests", ref)

    async def _release_hold(self, job: Job) -> None:
        leases = self._leases
        if leases is None:
            return
        try:
            if _hold_id(job) in await leases.list_leases():
                await leases.delete_lease(_hold_id(job))
        except RuntimeCallFailed as error:
            log.debug("image_hold_not_given_up", error=str(error))


def _hold_id(job: Job) -> str:
    return HOLD_PREFIX + hashlib.sha256(f"{job.reference}\0{job.handler}".encode()).hexdigest()[:16]


def _failure(error: RuntimeCallFailed) -> AttemptFailure:
    return AttemptFailure(error.details, error.code)


def _auth(credential: Credential | None, server: str) -> pb.AuthConfig | None:
    if credential is None:
        return None
    return pb.AuthConfig(
        username=credential.username,
        password=credential.password.reveal(),
        identity_token=credential.identity_token.reveal(),
        server_address=server,
    )
