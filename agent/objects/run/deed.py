# SPDX-License-Identifier: Apache-2.0
"""Several files that one apply changes: all of them change or none, also where the process or the node dies meanwhile.

First each content is whole and on the disk as a draft beside its file: a disk that is full or takes nothing refuses
here, and nothing has changed. Then an intention says which files they are, and from then on the next start finishes
what this one does not. Then names are swapped, in the order that was given, and the intention goes. It is a file beside
the manifests: on their disk, without any content of theirs, whatever becomes of the database.
A file that was edited by hand meanwhile stays as the person has it: before the swap the whole deed is taken back, and
after a crash the start tells of it. Nothing in this process reads the directory between two swaps (`WRITING`).
Blocking.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from hashlib import blake2b
from pathlib import Path

import msgspec
import structlog

from agent.drivers.atomic_files import sync_directory, write_file
from agent.drivers.manifests.trust import ROOT_ALONE
from agent.model.finding import Finding
from agent.model.refused import Refused
from agent.objects.run.writer import (
    WRITING,
    Edited,
    content_of,
    draft_of,
    put,
    remove,
    unwritten,
    write_draft,
    write_whole,
)

log = structlog.get_logger(plane="daemon")

INTENTION = ".kepd-intention"


class Change(msgspec.Struct, frozen=True):
    """`before` is what the file had when it was read, None for one that was not there."""

    path: str
    before: bytes | None
    content: bytes
    mode: int

    @property
    def place(self) -> Path:
        return Path(os.path.realpath(self.path))


class Intended(msgspec.Struct, frozen=True):
    """Digests, of a file that is not there an empty one. Not every name is UTF-8."""

    name: bytes
    before: str
    after: str

    @property
    def path(self) -> str:
        return os.fsdecode(self.name)


def change_all(directory: Path, changes: Sequence[Change]) -> None:
    """Raises Edited where a file is not what it was when it was read, and Refused where one cannot be written."""
    if len(changes) > 1:
        with _alone(directory):
            _change_all(directory / INTENTION, changes)
        return
    for change in changes:
        with _told(change.path):
            write_whole(Path(change.path), change.content, change.mode, change.before)


def _change_all(intention: Path, changes: Sequence[Change]) -> None:
    places = [change.place for change in changes]
    try:
        for change in changes:
            with _told(change.path):
                write_draft(change.place, change.content, change.mode)
        _sync(places)
        with _told(str(intention)):
            write_file(intention, msgspec.json.encode([
                Intended(os.fsencode(change.path), _digest(change.before), _digest(change.content))
                for change in changes
            ]))  # fmt: skip
        _swap_all(changes)
        _sync(places)
    finally:
        _drop(intention, *map(draft_of, places))


def _swap_all(changes: Sequence[Change]) -> None:
    for count, change in enumerate(changes):
        try:
            with _told(change.path):
                put(draft_of(change.place), change.place, change.before)
        except BaseException:
            for done in reversed(changes[:count]):
                _take_back(done)
            raise


def _take_back(change: Change) -> None:
    """An edit of the moment since stays."""
    try:
        if change.before is None:
            remove(change.place, change.content)
        else:
            put(write_draft(change.place, change.before, change.mode), change.place, change.content)
    except OSError as error:
        log.warning("manifest_not_taken_back", path=change.path, error=str(error))


def finish(directory: Path) -> tuple[Finding, ...]:
    """What a process that died meant to do, before the first look of the next one."""
    intention = directory / INTENTION
    try:
        with _alone(directory):
            findings = list(_finished(intention))
            links = (Path(os.path.realpath(entry)) for entry in os.scandir(directory) if entry.is_symlink())
            _drop(*directory.glob(".*.draft"), *directory.glob(f".{INTENTION}.*"), *map(draft_of, links))
    except Refused:
        # There is none, or another process is at work.
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        text = f"what an apply did not finish stays as it is, for {intention} cannot be carried out: {error}"
        findings = [Finding(str(directory), "", f"{text}; remove it, and apply again")]
    for finding in findings:
        log.warning("apply_not_finished", problem=str(finding))
    return tuple(findings)


def _finished(intention: Path) -> Iterator[Finding]:
    try:
        with open(intention, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as source:
            ROOT_ALONE.check(os.fstat(source.fileno()))
            intended = msgspec.json.decode(source.read(), type=list[Intended])
    except FileNotFoundError:
        return
    places = [Path(os.path.realpath(step.path)) for step in intended]
    for step, place in zip(intended, places, strict=True):
        yield from _finish(step, place, intended)
    _sync(places)
    _drop(*map(draft_of, places))
    intention.unlink()
    log.info("apply_finished", paths=[step.path for step in intended])


def _finish(step: Intended, place: Path, intended: Sequence[Intended]) -> Iterator[Finding]:
    draft, now = draft_of(place), content_of(place)
    new, there = content_of(draft), _digest(now)
    if there == step.after and (new is None or _digest(new) in (step.before, step.after)):
        return
    others = ", ".join(other.path for other in intended if other is not step)
    text = f"was edited while kepd was about to change it with {others}, and stays as it is; apply that manifest again"
    try:
        if there == step.after:
            # It died when it had just found the edit in the draft.
            draft.replace(place)
        elif there == step.before and _digest(new) == step.after:
            put(draft, place, now)
            return
    except OSError as error:
        text = f"cannot be written: {error.strerror}; apply again what changed {others}"
    yield Finding(step.path, "", text)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Among the threads of this process and among others that begin. Whoever else has the lock is not waited for."""
    with _told(str(directory)):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with WRITING:
            try:
                flock(handle, LOCK_EX | LOCK_NB)
            except BlockingIOError as error:
                raise Refused("conflict", f"another program has locked {directory}; try again") from error
            except OSError as error:
                # NFS locks no directory.
                log.debug("manifests_not_locked", directory=str(directory), error=str(error))
            yield
    finally:
        os.close(handle)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except Edited:
        raise
    except OSError as error:
        raise unwritten(path, error) from error


def _drop(*leftovers: Path) -> None:
    """On a disk that takes nothing even one that is not there cannot be removed."""
    for leftover in leftovers:
        with suppress(OSError):
            leftover.unlink(missing_ok=True)


def _sync(places: Sequence[Path]) -> None:
    for folder in {place.parent for place in places}:
        with suppress(FileNotFoundError):
            sync_directory(folder)


def _digest(content: bytes | None) -> str:
    return blake2b(content, digest_size=16).hexdigest() if content is not None else ""
