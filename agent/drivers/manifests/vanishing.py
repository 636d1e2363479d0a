# SPDX-License-Identifier: Apache-2.0
"""All manifests gone at once: an order to end everything, or a directory that was unmounted?

Owns: the answer. Files that somebody was seen to delete are gone; when the rest vanishes together and unseen, what they
said stays valid until the next look by the clock has found nothing either. Where the empty directory is another one,
such as a mount point without its disk, that says nothing for as long as it is empty.
Never: looks at files or at the clock. Pure.
"""

from collections.abc import Set as AbstractSet
from pathlib import PurePath

import msgspec
from msgspec.structs import replace

from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot


class Vanishing(msgspec.Struct, frozen=True):
    """What is believed now. `until_s` is when an empty directory will be believed."""

    snapshot: ManifestSnapshot
    until_s: float | None = None


def judge(
    before: Vanishing | None,
    seen: ManifestSnapshot,
    deleted: AbstractSet[str],
    now_s: float,
    wait_s: float,
    directory: str,
) -> Vanishing:
    """`deleted` are the paths that were seen to be deleted or moved away. A directory that is not there says nothing:
    what was not seen to be deleted stays valid until there is one."""
    known = before.snapshot if before is not None else ManifestSnapshot()
    unseen = known.files.keys() - deleted
    folders = {path: one for path, one in known.folders.items() if str(PurePath(path).parents[1]) not in deleted}
    if seen.is_missing and before is not None:
        files = {path: content for path, content in known.files.items() if path in unseen}
        text = "is not there; what its manifests said stays valid until it is there again"
        missing = (Finding(directory, "", text),) if files or folders else ()
        problems = (*seen.problems, *missing)
        held = replace(seen, files=files, folders=folders, unread=known.unread, problems=problems, place=known.place)
        return Vanishing(held, now_s + wait_s)
    if seen.files or not unseen or before is None:
        return Vanishing(seen)
    if known.place and seen.place not in (0, known.place):
        files = {path: content for path, content in known.files.items() if path in unseen}
        text = "is empty and another directory than before; what its manifests said stays valid until it has one"
        problems = (*seen.problems, Finding(directory, "", text))
        held = replace(seen, files=files, folders=folders, problems=problems, place=known.place)
        return Vanishing(held, now_s + wait_s)
    until_s = now_s + wait_s if before.until_s is None or known.is_missing else before.until_s
    if now_s >= until_s:
        return Vanishing(seen)
    text = f"all {len(known.files)} manifests are gone at once, but kepd saw no deletion of {len(unseen)} of them; "
    text += f"they stay valid for {wait_s:g} s, in case they come back"
    problems = (*seen.problems, Finding(directory, "", text))
    return Vanishing(replace(seen, files=known.files, folders=folders, problems=problems), until_s)
