# SPDX-License-Identifier: Apache-2.0
"""Everything that happens with a request before the queue: name, presence, access, pauses, credentials.

Credentials are looked up only when a pull or a check of access needs them.
"""

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.access.dockerconfig import ConfigInvalid
from agent.images.access.grants import claim_of, is_check_needed, judge
from agent.images.ports import ImageRuntime
from agent.images.queue.backoff import BackoffTable, Pause
from agent.images.queue.errors import BACK_OFF, ERR_PULL, MEANINGS, Deed, PullFailure
from agent.images.queue.flights import FlightKey
from agent.images.queue.rules import RewriteTarget, rewritten
from agent.images.run.credentials import CredentialSource, Lookup
from agent.images.run.records import AccessRecords
from agent.images.settings import ImageSettings
from agent.images.view.texts import (
    Sentence,
    back_off_message,
    backed_off,
    bad_name,
    failed,
    inspect_failed,
    never_present,
    present,
    without_id_or_size,
)
from agent.model.clock import Clock
from agent.model.images.credential import fingerprint
from agent.model.images.pull import ErrorClass, PullOutcome, PullPolicy, PullRequest, PullResult
from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="images")


class Settled(msgspec.Struct, frozen=True):
    outcome: PullOutcome
    sentences: tuple[Sentence, ...] = ()


class NeededPull(msgspec.Struct, frozen=True):
    reference: ImageReference
    key: FlightKey
    lookup: Lookup
    present_id: str = ""
    target: RewriteTarget | None = None
    sentences: tuple[Sentence, ...] = ()


class PullIntake:
    """`backoff` has the pauses of all pods; keys begin with the pod's uid."""

    def __init__(
        self,
        runtime: ImageRuntime,
        records: AccessRecords,
        credentials: CredentialSource,
        settings: ImageSettings,
        *,
        clock: Clock,
    ) -> None:
        self._runtime = runtime
        self._records = records
        self._credentials = credentials
        self._clock = clock
        self._settings = settings
        self.backoff = BackoffTable()
        self._resolved: dict[FlightKey, tuple[float, str]] = {}

    @property
    def settings(self) -> ImageSettings:
        return self._settings

    def apply(self, settings: ImageSettings) -> None:
        self._settings = settings

    async def examine(self, request: PullRequest) -> Settled | NeededPull:
        image = request.image
        try:
            reference = parse_reference(image)
        except ReferenceInvalid as error:
            sentence = bad_name(image, str(error))
            return _refused(request, "InvalidImageName", sentence.text, ErrorClass.NAME, (sentence,))
        try:
            found = await self.look(reference, request.handler)
        except RuntimeCallFailed as error:
            sentence = inspect_failed(image, error.details)
            return _refused(request, "ImageInspectError", sentence.text, ErrorClass.RUNTIME, (sentence,))
        lookup: Lookup | None = None
        if found is not None and request.policy is not PullPolicy.ALWAYS:
            may_use, lookup = await self.may_use(request, reference, found.id)
            if may_use:
                return self.served(request, found.id, found.size)
        if request.policy is PullPolicy.NEVER:
            # The same for absent and forbidden, so that presence is not revealed.
            sentence = never_present(image)
            return _refused(request, "ErrImageNeverPull", sentence.text, None, (sentence,))
        return await self._prepare(request, reference, found, lookup)

    async def look(self, reference: ImageReference, handler: str) -> pb.Image | None:
        """The image, if it is there. Raises RuntimeCallFailed."""
        found = await self._runtime.image_status(reference.cri_image, handler=handler)
        if found is not None and not (found.id and found.size):
            raise RuntimeCallFailed("ImageStatus", without_id_or_size(reference.cri_image))
        return found

    async def may_use(
        self, request: PullRequest, reference: ImageReference, image_id: str
    ) -> tuple[bool, Lookup | None]:
        """Whether a pod may use what is there; the credentials too, if they had to be looked up for it."""
        rules = self.settings.access
        pulled_by_us = self._records.is_pulled_by_us(image_id, str(reference))
        if not is_check_needed(request.image, rules, is_pulled_by_us=pulled_by_us):
            return True, None
        now_s = self._clock.wall_s()
        proofs = self._records.proofs(image_id, reference.repo)
        if proofs is None:
            return False, None
        if judge(proofs, (), rules, now_s).may_use:
            return True, None
        lookup = await self._look_up(request, reference)
        if lookup is None:
            return False, None
        claim = self._records.claim(claim_of(lookup.credentials))
        verdict = judge(proofs, claim, rules, now_s)
        if verdict.update is not None:
            await self._records.note(image_id, reference.repo, verdict.update, now_s)
        return verdict.may_use, lookup

    def served(self, request: PullRequest, image_id: str, size_bytes: int) -> Settled:
        outcome = PullOutcome(result=PullResult.PRESENT, image=request.image, image_id=image_id, size_bytes=size_bytes)
        return Settled(outcome, (present(request.image),))

    async def _prepare(
        self, request: PullRequest, reference: ImageReference, found: pb.Image | None, lookup: Lookup | None
    ) -> Settled | NeededPull:
        if (pause := self.backoff.waiting(own_key(request), self._clock.now_s())) is not None and request.pod.uid:
            return self._back_off(request, pause)
        try:
            target = rewritten(reference, self.settings.rewrite)
            lookup = await self._of_target(request, reference, target, lookup)
        except ConfigInvalid as error:
            return _refused(request, ERR_PULL, str(error), ErrorClass.AUTH, failed(request.image, str(error), ERR_PULL))
        key = FlightKey(str(reference), request.handler, fingerprint(lookup.credentials))
        if (pause := self.backoff.waiting(shared_key(key), self._clock.now_s())) is not None and request.pod.uid:
            return self._back_off(request, pause)
        if found is not None and self._is_fresh(request, key, found.id):
            return self.served(request, found.id, found.size)
        return NeededPull(reference, key, lookup, found.id if found is not None else "", target, lookup.sentences)

    async def _of_target(
        self, request: PullRequest, reference: ImageReference, target: RewriteTarget | None, known: Lookup | None
    ) -> Lookup:
        """The credentials of the repository that is really asked, and on request those of the written one after it."""
        if target is None:
            return known or await self._find_credentials(reference.repo, request)
        lookup = await self._find_credentials(target.reference.repo, request)
        if self.settings.keys.rewrite.auth != "original":
            return lookup
        more = known or await self._find_credentials(reference.repo, request)
        return replace(lookup, credentials=(*lookup.credentials, *more.credentials))

    async def _find_credentials(self, repo: str, request: PullRequest) -> Lookup:
        return await self._credentials.find(repo, request, is_strict=self._settings.is_like_kubelet)

    async def _look_up(self, request: PullRequest, reference: ImageReference) -> Lookup | None:
        try:
            return await self._find_credentials(reference.repo, request)
        except ConfigInvalid:
            return None

    def _back_off(self, request: PullRequest, pause: Pause) -> Settled:
        message = back_off_message(request.image, pause.reason, pause.text)
        settled = _refused(request, BACK_OFF, message, None, backed_off(request.image))
        wait_s = pause.until_s - self._clock.now_s()
        return Settled(replace(settled.outcome, retry_in_s=wait_s), settled.sentences)

    def _is_fresh(self, request: PullRequest, key: FlightKey, image_id: str) -> bool:
        keep_s = self.settings.keys.always_cache
        at_s, resolved_id = self._resolved.get(key, (0.0, ""))
        is_recent = keep_s > 0 and resolved_id == image_id and self._clock.now_s() - at_s <= keep_s
        return request.policy is PullPolicy.ALWAYS and is_recent

    def note_success(self, request: PullRequest, key: FlightKey, image_id: str) -> None:
        now_s = self._clock.now_s()
        if not self.settings.is_like_kubelet:
            self.backoff.reset(own_key(request))
            self.backoff.reset(shared_key(key))
        self.backoff.forget_expired(now_s)
        if self.settings.keys.always_cache > 0:
            self._resolved = {
                known: value
                for known, value in self._resolved.items()
                if now_s - value[0] <= self.settings.keys.always_cache
            }
            self._resolved[key] = (now_s, image_id)

    def note_failure(self, request: PullRequest, failure: PullFailure, luck: float) -> float | None:
        """A pull failed for a request; answers with its pause. A registry that wants a pause is no fault of a pod."""
        if MEANINGS[failure.error_class].deed is Deed.LEAVE_REGISTRY and not self.settings.is_like_kubelet:
            return failure.hold_s
        if not request.pod.uid:
            return None
        curve = self.settings.backoff.curve(failure.error_class)
        return self.backoff.fail(
            own_key(request), self._clock.now_s(), curve, luck=luck, text=failure.text, reason=failure.reason
        )

    def note_shared_failure(self, key: FlightKey, failure: PullFailure) -> None:
        """What would fail for every pod alike is not tried for each of them."""
        if MEANINGS[failure.error_class].deed is Deed.SHARED_PAUSE and not self.settings.is_like_kubelet:
            curve = self.settings.backoff.curve(failure.error_class)
            now_s = self._clock.now_s()
            self.backoff.fail(shared_key(key), now_s, curve, text=failure.text, reason=failure.reason)


def own_key(request: PullRequest) -> str:
    return f"{request.pod.uid}_{request.image}"


def shared_key(key: FlightKey) -> str:
    return f"shared {key.reference} {key.fingerprint}"


def _refused(
    request: PullRequest, reason: str, message: str, error_class: ErrorClass | None, sentences: tuple[Sentence, ...]
) -> Settled:
    outcome = PullOutcome(
        result=PullResult.REFUSED, image=request.image, reason=reason, message=message, error_class=error_class
    )
    return Settled(outcome, sentences)
