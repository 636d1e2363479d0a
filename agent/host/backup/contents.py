# SPDX-License-Identifier: Apache-2.0
"""What a backup has: configuration, manifests and state, each by its place below its root; and what of it is secret.

Data of pods, their logs and their claims stay out: they are as large as they like, and not kepd's. So does what tells
of this boot or process.
Never: touches a file.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

import msgspec

from agent.model.pods.source_folder import SOURCE_FOLDERS

FORMAT = 1
UNKNOWN = "what this kepd does not know"
ABOUT = "about.json"
ROOTS = ("config", "manifests", "state", "pods")
"""In the order in which they are written back: the first says where the others are."""
MOST_BYTES = 256 << 20
"""Of one file."""
OF_PODS = "volumes"
CLAIMS = "claims"
"""What pods claimed, where no other place is configured."""
OF_THIS_BOOT = frozenset({"boot-id", "lock"})
SECRET_FOLDERS = frozenset(name for name, kind in SOURCE_FOLDERS.items() if kind == "Secret")
SIGNS: Mapping[str, "re.Pattern[bytes]"] = MappingProxyType({
    "a Secret": re.compile(rb"""(?m)["']?\bkind["']?\s*:\s*["']?Secret\b"""),
    "a private key": re.compile(rb"PRIVATE KEY-----"),
    "a login to a cluster": re.compile(rb"""["']?\b(client-key-data|token|password)["']?\s*:\s*["']?[^\s"'{}\[\],]"""),
    "logins to registries": re.compile(rb"""["']?\bauths?["']?\s*:\s*[{"']"""),
})  # fmt: skip


# The database with its journal; a copy of it is a part of what is encrypted.
OBJECTS = ("objects.db", "objects.db-wal", "objects.db-shm", "objects.torn")
# What the next process tells watchers: of a time that has gone by where it is restored.
NEXT = "door/changes.json"
# Files of the state that only kepd may read, by their place: what opens something looks like nothing in particular.
SECRET_STATE: Mapping[str, str] = MappingProxyType({
    "door": "what opens the door",
    "images/hash.key": "the key of what is remembered of logins",
    "devices/api": "what opens the API of drivers",
    **dict.fromkeys(OBJECTS, "manifests as they were, Secrets among them"),
})  # fmt: skip
OPEN_STATE = (
    "instance",
    "events.ring",
    "config.last.yaml",
    "services",
    "images",
    "proxy",
    "observe",
    "devices",
    "pods",
)
SETTINGS = frozenset({".yaml", ".yml", ".json"})
"""What may be configuration; a token or a key has any name."""


class About(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first member of an archive."""

    format: int
    version: str
    """Of the kepd that wrote it."""
    node: str
    written: str
    left_out: tuple[str, ...] = ()
    """Because it is secret."""


def is_kept(root: str, relative: PurePosixPath) -> bool:
    """Whether a file below a root belongs into a backup. Names with a dot are drafts."""
    if any(one.startswith(".") for one in relative.parts) or relative.name in OF_THIS_BOOT:
        return False
    if root == "state" and (str(relative) in (*OBJECTS, NEXT) or relative.parts[0] == CLAIMS):
        return False
    return OF_PODS not in relative.parts if root in ("state", "pods") else True


def secret_in(root: str, relative: PurePosixPath, content: bytes) -> str:
    """What is secret about a file; empty: nothing. Rather too much than too little."""
    if SECRET_FOLDERS & {*relative.parts}:
        return "a value of a Secret"
    if root == "config" and relative.suffix not in SETTINGS:
        return "what only its reader knows"
    if root == "state" and (what := _secret_state(relative)):
        return what
    return next((what for what, sign in SIGNS.items() if sign.search(content)), "")


def _secret_state(relative: PurePosixPath) -> str:
    """A file that nothing here names is taken for secret."""
    for place, what in SECRET_STATE.items():
        if relative.is_relative_to(place):
            return what
    return "" if any(relative.is_relative_to(place) for place in OPEN_STATE) else UNKNOWN


def read_about(content: bytes) -> About:
    """Raises ValueError with what is wrong."""
    try:
        about = msgspec.json.decode(content, type=About)
    except msgspec.DecodeError as error:
        raise ValueError(f"{ABOUT}: {error}") from error
    if about.format != FORMAT:
        raise ValueError(f"{ABOUT}: format {about.format}, of kepd {about.version}; this kepd reads format {FORMAT}")
    return about


def place_of(member: str) -> tuple[str, PurePosixPath]:
    """Root and path of a member of an archive. Raises ValueError for a name that leads elsewhere."""
    root, _, rest = member.partition("/")
    path = PurePosixPath(rest)
    if root not in ROOTS or not rest or path.is_absolute() or ".." in path.parts or "\0" in member:
        raise ValueError(f"{member!r} is no place below {', '.join(ROOTS)}")
    return root, path
