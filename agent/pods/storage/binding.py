# SPDX-License-Identifier: Apache-2.0
"""Which volume serves a claim: one of a manifest that fits, else a directory that is made for it.

A volume of a manifest is taken as soon as it fits, the smallest first. A directory is made for the first pod that uses
the claim, so that a volume which comes a moment after its claim is not too late. Pure.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from hashlib import sha256
from uuid import UUID

import msgspec

from agent.model.nodes.terms import term_fits
from agent.pods.manifest.selecting import Selector, selects
from agent.pods.storage.objects import (
    CLAIM,
    DELETE,
    NO_PROVISIONER,
    OWN_CLASS,
    OWN_PROVISIONER,
    RETAIN,
    Key,
    StorageObject,
    WantedClaim,
    WantedClass,
    WantedVolume,
    bytes_of,
)

FORMAT = 1
WAITS = "WaitForFirstConsumer"
UNBOUND, MISSING_CLASS = "FailedBinding", "ProvisioningFailed"


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and what serves it. `is_own`: kepd made the directory, and nobody else had one there. `deletes`: it goes
    with the claim. `is_leaving`: somebody deletes it while pods use it; `is_released`: the claim is gone, and its
    content is kept."""

    namespace: str
    name: str
    volume: str
    path: str
    size: str = ""
    modes: tuple[str, ...] = ()
    storage_class: str = ""
    labels: Mapping[str, str] = {}
    is_directory: bool = False
    is_own: bool = False
    deletes: bool = False
    is_leaving: bool = False
    is_released: bool = False
    maker: str = ""
    file: str = ""
    created_s: float = 0.0
    format: int = FORMAT

    @property
    def key(self) -> Key:
        return CLAIM, self.namespace, self.name

    @property
    def text(self) -> str:
        return f"{self.namespace}/{self.name}"


class Unbound(msgspec.Struct, frozen=True):
    """Why nothing serves a claim yet."""

    reason: str
    text: str


class Storage(msgspec.Struct, frozen=True):
    """What the manifests say."""

    claims: Mapping[Key, WantedClaim] = {}
    volumes: Mapping[str, WantedVolume] = {}
    classes: Mapping[str, WantedClass] = {}


class StorageSettings(msgspec.Struct, frozen=True):
    """`root` is where directories are made; `takes_any_class`: also those of provisioners that are not here."""

    root: str
    node: str = ""
    labels: Mapping[str, str] = {}
    takes_any_class: bool = True


def storage_of(objects: Iterable[object]) -> Storage:
    listed: list[StorageObject] = [one for one in objects if isinstance(one, StorageObject)]
    return Storage(
        {one.key: one for one in listed if isinstance(one, WantedClaim)},
        {one.name: one for one in listed if isinstance(one, WantedVolume)},
        {one.name: one for one in listed if isinstance(one, WantedClass)},
    )


def default_class(classes: Mapping[str, WantedClass]) -> WantedClass:
    """The first that says so, else kepd's own."""
    chosen = min((name for name, one in classes.items() if one.is_default), default=None)
    return classes[chosen] if chosen is not None else classes.get(OWN_CLASS, WantedClass(name=OWN_CLASS))


def directory_volume(claim: WantedClaim, node: str) -> str:
    """Always the same name, whatever was remembered."""
    return f"pvc-{UUID(sha256('/'.join((*claim.key, node)).encode()).hexdigest()[:32])}"


def bind_all(
    claims: Iterable[WantedClaim],
    storage: Storage,
    settings: StorageSettings,
    records: Mapping[Key, ClaimRecord],
    *,
    is_used: bool,
) -> Iterator[tuple[WantedClaim, ClaimRecord | Unbound]]:
    """One after the other: what one takes no other gets."""
    taken = {record.volume for record in records.values()}
    for claim in claims:
        known = records.get(claim.key)
        own = known.volume if known is not None else ""
        taken.discard(own)
        found = bind(claim, storage, settings, known, taken, is_used=is_used)
        taken |= {found.volume if isinstance(found, ClaimRecord) else own}
        yield claim, found


def bind(
    claim: WantedClaim,
    storage: Storage,
    settings: StorageSettings,
    known: ClaimRecord | None,
    taken: Container[str],
    *,
    is_used: bool,
) -> ClaimRecord | Unbound:
    """What serves it now; the same again where something does, which is `known`. `taken` are the volumes of other
    claims; `is_used`: a pod waits for it."""
    if known is not None and not known.is_released:
        return _kept(known, claim, storage)
    found = _chosen(claim, storage, settings, taken, known.volume if known is not None else "")
    if isinstance(found, WantedVolume):
        return _record(claim, found.name, found.path, found.size, found.spec.storage_class_name)
    if isinstance(found, Unbound):
        return found
    if not settings.root:
        return Unbound(MISSING_CLASS, "this node has no place for claims; pods.claimDirectory names one")
    if not is_used:
        return Unbound(WAITS, "waits for the first pod that uses it")
    path = f"{settings.root}/{claim.namespace}/{claim.name}"
    made = _record(claim, directory_volume(claim, settings.node), path, claim.spec.size, found.name)
    is_own = known.is_own if known is not None and known.path == path else True
    return msgspec.structs.replace(made, is_directory=True, is_own=is_own, deletes=found.deletes)


def _record(claim: WantedClaim, volume: str, path: str, size: str, storage_class: str) -> ClaimRecord:
    return ClaimRecord(
        namespace=claim.namespace, name=claim.name, volume=volume, path=path, size=size,
        modes=claim.spec.access_modes, storage_class=storage_class, labels=claim.labels, maker=claim.maker,
        file=claim.file,
    )  # fmt: skip


def _kept(known: ClaimRecord, claim: WantedClaim, storage: Storage) -> ClaimRecord:
    """With what the manifests say of it now: a directory is as large as it is asked to be."""
    volume = storage.volumes.get(known.volume)
    size = known.size if not known.is_directory and volume is None else volume.size if volume else claim.spec.size
    own = storage.classes.get(known.storage_class)
    deletes = known.is_directory and (own.deletes if own is not None else known.deletes)
    return msgspec.structs.replace(
        known, size=size, modes=claim.spec.access_modes, labels=claim.labels, maker=claim.maker, file=claim.file,
        deletes=deletes,
    )  # fmt: skip


def _chosen(
    claim: WantedClaim, storage: Storage, settings: StorageSettings, taken: Container[str], before: str
) -> WantedVolume | WantedClass | Unbound:
    """`before`: the volume that a claim of this name had, whose content waits for it."""
    spec, own = claim.spec, default_class(storage.classes)
    name = spec.storage_class_name
    is_own_name = spec.volume_name == directory_volume(claim, settings.node)
    if spec.volume_name and not is_own_name:
        volume = storage.volumes.get(spec.volume_name)
        if volume is None:
            return Unbound(UNBOUND, f'volume "{spec.volume_name}" is in no manifest')
        why = _why_not(volume, claim, settings, taken, {name or "", volume.spec.storage_class_name})
        return Unbound(UNBOUND, f'volume "{volume.name}" {why}') if why else volume
    classes = {name} if name is not None else {"", own.name}
    free = (one for one in storage.volumes.values() if one.name not in taken)
    reasons = [(one, _why_not(one, claim, settings, taken, classes)) for one in free]
    fit = [one for one, why in reasons if not why]
    if fit:
        return min(fit, key=lambda one: (one.name != before, one.spec.claim_ref is None, bytes_of(one.size), one.name))
    near = next((f'; "{one.name}" {why}' for one, why in reasons if one.spec.storage_class_name in classes), "")
    if spec.selector is not None or name == "":
        what = "the volumes that its selector takes" if spec.selector is not None else "the volumes without a class"
        return Unbound(UNBOUND, f"none of {what} fits{near}")
    chosen = own if name is None else storage.classes.get(name) or _unknown(name)
    if chosen.provisioner == NO_PROVISIONER:
        return Unbound(UNBOUND, f'no volume of class "{chosen.name}" fits, and it makes none{near}')
    if chosen.provisioner != OWN_PROVISIONER and not settings.takes_any_class:
        text = f'class "{chosen.name}" is of {chosen.provisioner or "no manifest"}; pods.claimClasses takes only '
        return Unbound(MISSING_CLASS, f"{text}those of {OWN_PROVISIONER}")
    return chosen


def _unknown(name: str) -> WantedClass:
    return WantedClass(name=name, provisioner=OWN_PROVISIONER if name == OWN_CLASS else "")


def _why_not(
    volume: WantedVolume, claim: WantedClaim, settings: StorageSettings, taken: Container[str], classes: set[str]
) -> str:
    """Empty for one that fits."""
    spec, wanted, reference = volume.spec, claim.spec, volume.spec.claim_ref
    selector = wanted.selector or Selector()
    if spec.storage_class_name not in classes:
        return f"has another class, {spec.storage_class_name or 'none'}"
    if volume.name in taken:
        return "serves another claim"
    if reference is not None and (reference.namespace or "default", reference.name) != (claim.namespace, claim.name):
        return f"is kept for {reference.namespace or 'default'}/{reference.name}"
    if bytes_of(volume.size) < bytes_of(wanted.size):
        return f"has {volume.size}, and {wanted.size} are asked for"
    if missing := [mode for mode in wanted.access_modes if mode not in spec.access_modes]:
        return f"has no access mode {', '.join(missing)}"
    if not selects(selector, volume.labels):
        return "is not selected"
    if volume.terms and not any(term_fits(term, settings.labels, settings.node) for term in volume.terms):
        return f"is of another node than {settings.node}"
    return ""


def reclaim_policy(record: ClaimRecord) -> str:
    return DELETE if record.deletes else RETAIN
