# SPDX-License-Identifier: Apache-2.0
"""The templates that a Deployment, DaemonSet or StatefulSet had, newest last: what `rollout undo` goes back to.

The newest is in force. A StatefulSet has two of them while it changes; `current` is the one that it comes from. It is
written before the first pod has a template, so no pod ever has one that is not here.
"""

from collections.abc import Collection
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from agent.model.text.json_text import decode_record
from agent.pods.workloads.workload import Key, Template, Workload

FOLDER = "revisions"
FORMAT = 1
CAUSE = "kubernetes.io/change-cause"
MOST_REVISIONS, MOST_BYTES = 100, 2 << 20
"""Of the templates without pods beside the newest, whatever `revisionHistoryLimit` says."""


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    hash: str
    template: Template
    created_s: float = 0.0
    cause: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`claims` are the directories that a StatefulSet made for its pods."""

    kind: str
    namespace: str
    name: str
    file: str = ""
    current: str = ""
    claims: tuple[str, ...] = ()
    ends_claims: bool = False
    """They go when the StatefulSet goes."""
    revisions: tuple[Revision, ...] = ()
    format: int = FORMAT

    @property
    def key(self) -> Key:
        return self.kind, self.namespace, self.name

    @property
    def newest(self) -> Revision | None:
        return self.revisions[-1] if self.revisions else None

    def of(self, revision: str) -> Revision | None:
        return next((one for one in self.revisions if one.hash == revision), None)


def noted(history: History, workload: Workload, now_s: float, limit: int, used: Collection[str]) -> History:
    """With the template that the manifest has now. One that was there before is the newest again, under a new number.
    Of those without pods (`used` are those with) the last `limit` are kept beside the newest."""
    cause = dict(workload.annotations).get(CAUSE, "")
    newest = history.newest
    if newest is None or newest.hash != workload.revision:
        number = newest.number + 1 if newest is not None else 1
        fresh = Revision(
            number=number, hash=workload.revision, template=workload.template, created_s=now_s, cause=cause
        )
        others = [one for one in history.revisions if one.hash != workload.revision]
        history = replace(history, revisions=(*others, fresh))
    elif newest.cause != cause:
        history = replace(history, revisions=(*history.revisions[:-1], replace(newest, cause=cause)))
    if history.file != workload.file:
        history = replace(history, file=workload.file)
    is_fresh = newest is None or newest.hash != workload.revision
    return _bounded(history, limit, {workload.revision, history.current, *used}, most_bytes=MOST_BYTES * is_fresh)


def _bounded(history: History, limit: int, kept: Collection[str], most_bytes: int) -> History:
    """`most_bytes` 0: nothing came, so they are not counted again."""
    idle = [one for one in history.revisions if one.hash not in kept]
    dropped = {one.hash for one in idle[: max(len(idle) - min(limit, MOST_REVISIONS), 0)]}
    if most_bytes:
        sizes = accumulate(len(msgspec.json.encode(one)) for one in reversed(idle))
        dropped |= {one.hash for one, size in zip(reversed(idle), sizes, strict=True) if size > most_bytes}
    if not dropped:
        return history
    return replace(history, revisions=tuple(one for one in history.revisions if one.hash not in dropped))


def decode_history(content: bytes) -> History:
    """Raises ValueError for what cannot be read."""
    return decode_record(content, History, FORMAT)
