# SPDX-License-Identifier: Apache-2.0
"""One pull with its record: the intent before it, the outcome after it, so that a crash between them is known.

Content comes before the image, and the written name after a pull from elsewhere. In between verifiers may refuse the
image: programs of containerd's bindir plugin, called with `-name`, `-digest` and `-stdin-media-type`, the image's
descriptor on their input. Exit code 0 lets it be used, any other refuses it, and what is printed is the reason. All of
them have to agree; one that cannot be run, or does not end in time, refuses too. A directory that is missing or empty
refuses nothing. Source of behaviour: containerd, docs/image-verification.md.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.ports import ImageNames
from agent.images.queue.errors import AttemptFailure
from agent.images.run.plugin_process import PluginFailed, run_to_end
from agent.images.run.pulling.attempt import Attempts, Job, Pulled
from agent.images.run.records import AccessRecords
from agent.images.settings import ImageSettings
from agent.model.clock import Clock
from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference
from agent.model.images.state import PullStage
from agent.model.images.store import ImageRecord
from agent.model.runtime.error import AlreadyExists, NotFound, RuntimeCallFailed
from agent.model.text.outside_text import from_outside

log = structlog.get_logger(plane="images")

# containerd's defaults.
MOST_VERIFIERS = 10
LIMIT_S = 10.0
DESCRIPTOR = "application/vnd.oci.descriptor.v1+json"
LONGEST_REASON = 500
UNLISTED = "the directory of image verifiers {folder} cannot be listed: {error}"


class Verifiers:
    """`folder`: the configured one at this moment; empty where nothing is to be verified."""

    def __init__(self, folder: Callable[[], str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    @property
    def is_on(self) -> bool:
        return bool(self._folder())

    async def refusal(self, image: ImageRecord) -> str:
        """Why an image may not be used, in containerd's words; empty if it may."""
        folder = Path(self._folder())
        try:
            names = await asyncio.to_thread(_listed, folder)
        except OSError as error:
            return _blocked("bindir", image, UNLISTED.format(folder=folder, error=error.strerror))
        if len(names) > MOST_VERIFIERS:
            log.warning("image_verifiers_skipped", folder=str(folder), programs=len(names), used=MOST_VERIFIERS)
        for name in names[:MOST_VERIFIERS]:
            reason = await self._ask(folder / name, image)
            if reason:
                return _blocked(name, image, reason)
        return ""

    async def _ask(self, program: Path, image: ImageRecord) -> str:
        command = [str(program), "-name", image.name, "-digest", image.digest, "-stdin-media-type", DESCRIPTOR]
        descriptor = {"mediaType": image.media_type, "digest": image.digest, "size": image.size_bytes}
        try:
            ended = await run_to_end(command, msgspec.json.encode(descriptor), self._environment, LIMIT_S)
        except PluginFailed as error:
            return f"it {error}"
        said = from_outside(ended.output.decode("utf-8", "replace").strip())[:LONGEST_REASON]
        log.info("image_verified", image=image.name, digest=image.digest, by=program.name, code=ended.code, said=said)
        return "" if ended.code == 0 else f"exit code {ended.code}: {said or 'it gave no reason'}"


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def _blocked(verifier: str, image: ImageRecord, reason: str) -> str:
    return f"image verifier {verifier} blocked pull of {image.name} with digest {image.digest} for reason: {reason}"


class RecordedPulls:
    def __init__(
        self,
        attempts: Attempts,
        records: AccessRecords,
        names: ImageNames | None,
        clock: Clock,
        verifiers: Verifiers | None = None,
    ) -> None:
        self._attempts = attempts
        self._records = records
        self._names = names
        self._clock = clock
        self._verifiers = verifiers

    async def pull(self, job: Job, settings: Callable[[], ImageSettings]) -> Pulled | None:
        """The pull between its intent and its record. None: it failed, the job says how."""
        if job.is_content_only():
            content = await self._attempts.fetch_content(job, settings())
            if job.is_content_only():
                return content
            # A pod needs the image itself by now; it finds what was fetched, and has tries of its own.
            job.failures.clear()
            job.stage = PullStage.RESOLVING
        reference = str(job.reference)
        try:
            await self._records.begin(reference)
        except OSError as error:
            job.failures.append(AttemptFailure(f"the pull cannot be recorded: {error.strerror}"))
            return None
        result: Pulled | None = None
        try:
            result = await self._unrecorded(job, settings)
        finally:
            if result is None:
                await self._records.fail(reference)
        if result is not None:
            wall_s = self._clock.wall_s()
            names = _others(job, result)
            await self._records.succeed(reference, job.reference.repo, result.image_id, result.used, wall_s, names)
        return result

    async def _unrecorded(self, job: Job, settings: Callable[[], ImageSettings]) -> Pulled | None:
        """From where a rule leads, then as written; and nothing that a verifier refuses."""
        is_verified = self._verifiers is not None and self._verifiers.is_on
        before = await self._known(job) if is_verified else {}
        result = await self._of_target(job, settings) if job.target is not None else None
        if result is None and not job.is_target_only and not job.overdue:
            result = await self._attempts.pull(job, settings)
        if result is not None and is_verified and not await self._is_accepted(job, before):
            return None
        return result

    async def _known(self, job: Job) -> dict[str, ImageRecord]:
        """What the names of this pull stand for now."""
        if self._names is None:
            return {}
        wanted = {str(job.reference), str(job.target or job.reference)}
        try:
            return {one.name: one for one in await self._names.image_records() if one.name in wanted}
        except RuntimeCallFailed as error:
            job.failures.append(AttemptFailure(error.details, error.code))
            return {}

    async def _is_accepted(self, job: Job, before: Mapping[str, ImageRecord]) -> bool:
        """A name that this pull brought or moved goes again where its image is refused; one that stood before stays,
        for its image may be in use."""
        if self._verifiers is None or self._names is None:
            job.failures.append(AttemptFailure("image verifier bindir blocked pull: this runtime shows no digests"))
            return False
        job.stage = PullStage.VERIFYING
        now = await self._known(job)
        if not now:
            job.failures.append(AttemptFailure(f"image verifier bindir blocked pull of {job.reference}: no digest"))
            return False
        refusals = [(record, await self._verifiers.refusal(record)) for record in now.values()]
        refused = [(record, text) for record, text in refusals if text]
        for record, text in refused:
            job.failures.append(AttemptFailure(text))
            known = before.get(record.name)
            if known is None or known.digest != record.digest:
                with suppress(NotFound):
                    await self._names.delete_image(record.name)
        return not refused

    async def _of_target(self, job: Job, settings: Callable[[], ImageSettings]) -> Pulled | None:
        """Pull from where a rule points to, then give the image its written name."""
        if job.target is None:
            return None
        if self._names is None:
            job.failures.append(AttemptFailure("this runtime cannot give an image a second name"))
            return None
        written = job.image
        job.image = job.target.cri_image
        try:
            result = await self._attempts.pull(job, settings)
        finally:
            job.image = written
        if result is not None and not await _keep_name(self._names, job.target, job.reference):
            text = f"{job.target} was pulled, but could not be tagged {job.reference}"
            job.failures.append(AttemptFailure(text))
            return None
        return result


def _others(job: Job, result: Pulled) -> set[str]:
    """Names that an image has without this pull, its own too where it had that before."""
    names = {str(job.reference)} if job.present_id == result.image_id else set()
    pulled = [reference for reference in (job.reference, job.target) if reference is not None]
    for name in result.names:
        with suppress(ReferenceInvalid):
            other = parse_reference(name)
            # The digest of what was pulled is a name that came with it.
            is_new = other in pulled or ("@" in name and other.repo in {each.repo for each in pulled})
            names |= set() if is_new else {str(other)}
    return names


async def _keep_name(names: ImageNames, target: ImageReference, written: ImageReference) -> bool:
    """Whether the written name now stands for what was pulled as the target. It never fails: without the name the
    runtime would pull the written one, which is the fallback anyway."""
    try:
        records = {record.name: record for record in await names.image_records()}
        pulled = records.get(str(target))
        if pulled is None:
            return False
        known = records.get(str(written))
        if known is not None and known.digest == pulled.digest:
            return True
        if known is not None:
            with suppress(NotFound):
                await names.delete_image(known.name)
        with suppress(AlreadyExists):
            await names.create_image(replace(pulled, name=str(written)))
    except RuntimeCallFailed as error:
        log.warning("image_name_not_kept", image=str(written), pulled_as=str(target), error=error.details)
        return False
    return True
