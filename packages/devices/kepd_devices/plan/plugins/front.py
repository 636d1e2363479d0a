# SPDX-License-Identifier: Apache-2.0
"""What is known of the devices of a plugin behind kepd, and whether the kubelet may give one.

    clean ─Allocate→ granted ─PreStartContainer, or a container is seen→ used ─its sandbox ended→ dirty ─reset→ clean
                        └ Allocate again: the kubelet took it back, nobody saw it used → dirty   └ fails: quarantined

Only what is written down as clean is clean: what nobody knows the last use of is reset first. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from hashlib import sha256
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from agent.model.devices.plugin import PluginDevice
from agent.model.text.json_text import decode_json

VERSION = 1
FRONT_FOLDER = "front"
NOTE = "kepd.dev/devices."
# From PreStartContainer to the container in the runtime's lists.
START_GRACE_S = 30.0


class Use(StrEnum):
    CLEAN = "clean"
    GRANTED = "granted"
    USED = "used"
    DIRTY = "dirty"
    QUARANTINED = "quarantined"


class FrontDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """`sandbox` is where a container with it was seen last, `started_s` when its last start was announced, by the wall,
    until the container was seen. `why` it is in quarantine."""

    use: Use = Use.DIRTY
    sandbox: str = ""
    pod: str = ""
    started_s: float = 0.0
    why: str = ""


UNKNOWN = FrontDevice()


class FrontRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    resource: str
    boot_id: str = ""
    devices: dict[str, FrontDevice] = {}

    def of(self, device: str) -> FrontDevice:
        return self.devices.get(device, UNKNOWN)


class Holding(msgspec.Struct, frozen=True):
    """A device in a container that the runtime knows. It holds as long as its sandbox is ready, or it runs.
    `created_s` is by the wall."""

    resource: str
    device: str
    sandbox: str
    pod: str = ""
    holds: bool = True
    created_s: float = 0.0


class Holdings(msgspec.Struct, frozen=True):
    """What the runtime shows at one moment."""

    found: tuple[Holding, ...] = ()
    ready_sandboxes: frozenset[str] = frozenset()


def label_of(resource: str) -> str:
    """Short, and a name of a file."""
    return sha256(resource.encode()).hexdigest()[:12]


def record_name(resource: str) -> str:
    return f"{FRONT_FOLDER}/{label_of(resource)}.json"


def decode_record(content: bytes, boot_id: str) -> FrontRecord:
    """After a boot all sandboxes are gone. Raises ValueError."""
    found = decode_json(content, FrontRecord)
    if found.version != VERSION:
        raise ValueError(f"is of version {found.version}; this kepd reads {VERSION}")
    if found.boot_id == boot_id:
        return found
    in_hands = (Use.GRANTED, Use.USED)
    devices = {name: UNKNOWN if one.use in in_hands else one for name, one in found.devices.items()}
    return replace(found, boot_id=boot_id, devices=devices)


def note_of(resource: str, devices: Iterable[str]) -> tuple[str, str]:
    """The annotation of a container with these devices; each resource has a key of its own."""
    told = ",".join(one.replace("%", "%25").replace(",", "%2C") for one in devices)
    return f"{NOTE}{label_of(resource)}", f"{resource}={told}"


def with_note(annotations: Mapping[str, str], resource: str, devices: Iterable[str]) -> dict[str, str]:
    """A plugin's annotations, without any that would say who has devices, and kepd's own."""
    kept = {key: value for key, value in annotations.items() if not key.startswith(NOTE)}
    return {**kept, **dict([note_of(resource, devices)])}


def read_notes(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Resources and devices of a container. What does not read so is another's."""
    for key, value in annotations.items():
        resource, equals, told = value.partition("=")
        if equals and key == f"{NOTE}{label_of(resource)}":
            yield from ((resource, unquote(one)) for one in told.split(",") if one)


def looked(record: FrontRecord, seen: Holdings, now_s: float) -> dict[str, FrontDevice]:
    """What changes with what the runtime shows."""
    own = [one for one in seen.found if one.resource == record.resource]
    holders = {one.device: one for one in own if one.holds}
    changes = {}
    for name, one in holders.items():
        now = FrontDevice(Use.USED, one.sandbox, one.pod)
        if record.of(name) != now:
            changes[name] = now
    for name, known in record.devices.items():
        is_held = name in holders or (known.sandbox != "" and known.sandbox in seen.ready_sandboxes)
        has_come = any(one.device == name and one.created_s >= known.started_s for one in own)
        if known.use is Use.USED and not is_held and (has_come or not is_starting(known, now_s)):
            changes[name] = UNKNOWN
    return changes


def is_starting(known: FrontDevice, now_s: float) -> bool:
    """Its container may not be in the runtime's lists yet."""
    return bool(known.started_s) and now_s < known.started_s + START_GRACE_S


def listed(vendor: Mapping[str, PluginDevice], record: FrontRecord) -> list[PluginDevice]:
    """As the kubelet is told: what waits for its reset is unhealthy."""
    return [replace(one, is_healthy=one.is_healthy and may_be_given(record.of(name))) for name, one in vendor.items()]


def may_be_given(one: FrontDevice) -> bool:
    """Also what a pod has: it is the kubelet that knows who."""
    return one.use in (Use.CLEAN, Use.GRANTED, Use.USED)


def granted(devices: Collection[str]) -> dict[str, FrontDevice]:
    return dict.fromkeys(devices, FrontDevice(Use.GRANTED))


def started(record: FrontRecord, devices: Collection[str], now_s: float) -> dict[str, FrontDevice]:
    """A container with them is made in a moment. Where one was seen already, its sandbox still holds them."""
    return {name: replace(record.of(name), use=Use.USED, started_s=now_s) for name in devices}


def without_strangers(record: FrontRecord, known: Collection[str]) -> FrontRecord:
    """What the plugin lists no more is forgotten, and dirty when it comes back, unless it is in hands."""
    in_hands = (Use.GRANTED, Use.USED)
    devices = {name: one for name, one in record.devices.items() if name in known or one.use in in_hands}
    return replace(record, devices=devices)


def with_changes(record: FrontRecord, changes: Mapping[str, FrontDevice]) -> FrontRecord:
    return replace(record, devices={**record.devices, **changes}) if changes else record
