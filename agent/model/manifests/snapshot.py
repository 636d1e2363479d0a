# SPDX-License-Identifier: Apache-2.0
"""What a look at the manifests brought, and who looks."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from agent.model.finding import Finding
from agent.model.manifests.in_force import FileInForce
from agent.model.pods.source_folder import SourceFolder


class ManifestSnapshot(msgspec.Struct, frozen=True):
    """Files by path. What can be read no longer stands here with its last content, and in `problems` with the reason.

    `unread` are the files that nobody has read yet, or the directory: what stands there is unknown, not nothing.
    `refused` are those of them that another user may write.
    `folders` are ConfigMaps and Secrets with a file per key, by path; `ignored` is what lies beside manifests and is
    none; `exposed` are files that others than root may read.
    """

    files: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    problems: tuple[Finding, ...] = ()
    unread: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    folders: Mapping[str, SourceFolder] = msgspec.field(default_factory=dict)
    ignored: tuple[Finding, ...] = ()
    exposed: frozenset[str] = frozenset()
    is_remembered: bool = False
    """So it was when the last process ended; what is there now comes next."""
    is_first: bool = False
    """No process before this one has told what was in force, or not all of it."""
    is_missing: bool = False
    """There is no such directory."""
    place: int = 0
    """The directory's inode, which differs between a mount point and what is mounted there. 0 if unknown."""

    @property
    def doubtful(self) -> frozenset[str]:
        """What is unread and may have something in force."""
        return self.unread if self.is_first else frozenset()


class ManifestSource(Protocol):
    def snapshots(self) -> AsyncIterator[ManifestSnapshot]:
        """What was in force when the last process ended, then what is there now, and again after changes."""

    async def remember(
        self, files: Mapping[str, FileInForce], folders: Mapping[str, SourceFolder] = {}, *, is_whole: bool = True
    ) -> None:
        """What is in force now, by file or folder, for the next process, and whether that is known of all."""
