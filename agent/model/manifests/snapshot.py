# SPDX-License-Identifier: Apache-2.0
"""What a look at the directory of manifests brought."""

from collections.abc import Mapping

import msgspec

from agent.model.finding import Finding
from agent.model.pods.source_folder import SourceFolder

Key = tuple[str, str, str]
"""Kind, namespace, name of an object."""


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
