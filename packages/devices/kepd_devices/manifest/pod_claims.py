# SPDX-License-Identifier: Apache-2.0
"""Which claims a pod has: those that are there by name, and those that are made of templates.

Names and uids come from pod and claim alone, so that a kepd which was killed makes the same claim, and no second one.
"""

import hashlib
from collections.abc import Mapping
from uuid import UUID

import msgspec
from msgspec.structs import replace

from agent.model.pods.fields import PodClaim
from agent.model.pods.pod import PodSpec
from kepd_devices.manifest.objects import Claim, ClaimTemplate, Metadata
from kepd_devices.manifest.reading import DeviceObjects

POD_CLAIM_NOTE = "resource.kubernetes.io/pod-claim-name"
LONGEST_BASE = 57
SUFFIX_LETTERS = 5
# As Kubernetes draws the ends of names: no vowels, and nothing that is taken for another.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
V1 = "resource.k8s.io/v1"


class NotThere(Exception):
    """The pod names a claim or template that no manifest has; it waits."""


class ClaimOfPod(msgspec.Struct, frozen=True):
    """`entries` are the names by which the pod calls it; two may mean the same claim."""

    claim: Claim
    entries: tuple[str, ...]
    is_made: bool = False


def claims_of_pod(pod: PodSpec, objects: DeviceObjects) -> list[ClaimOfPod]:
    """In the order of the pod. Raises NotThere."""
    found: dict[str, ClaimOfPod] = {}
    for entry in pod.spec.resource_claims:
        one = _claim(pod, entry, objects)
        known = found.get(one.claim.metadata.uid)
        found[one.claim.metadata.uid] = one if known is None else replace(known, entries=(*known.entries, entry.name))
    return list(found.values())


def _claim(pod: PodSpec, entry: PodClaim, objects: DeviceObjects) -> ClaimOfPod:
    if entry.resource_claim_name:
        key = f"{pod.namespace}/{entry.resource_claim_name}"
        if (claim := objects.claims.get(key)) is None:
            raise NotThere(f"claim {key} is not there")
        return ClaimOfPod(with_uid(claim), (entry.name,))
    key = f"{pod.namespace}/{entry.resource_claim_template_name}"
    if (template := objects.templates.get(key)) is None:
        raise NotThere(f"claim template {key} is not there")
    return ClaimOfPod(made_claim(pod, entry.name, template), (entry.name,), is_made=True)


def with_uid(claim: Claim) -> Claim:
    """Another spec is another claim."""
    if claim.metadata.uid:
        return claim
    words = f"claim\0{claim.key}\0{spec_hash(claim)}"
    return replace(claim, metadata=replace(claim.metadata, uid=_uuid(words)))


def spec_hash(claim: Claim) -> str:
    return hashlib.sha256(msgspec.json.encode(claim.spec, order="sorted")).hexdigest()[:16]


def made_claim(pod: PodSpec, entry: str, template: ClaimTemplate) -> Claim:
    inner = template.spec.metadata
    metadata = Metadata(
        name=made_name(pod.name, entry, pod.uid),
        namespace=pod.namespace,
        uid=_uuid(f"template\0{pod.uid}\0{entry}"),
        labels=inner.labels,
        annotations=_annotations(inner.annotations, entry),
    )
    return Claim(api_version=V1, kind="ResourceClaim", metadata=metadata, spec=template.spec.spec)


def _annotations(given: Mapping[str, str], entry: str) -> dict[str, str]:
    return {**given, POD_CLAIM_NOTE: entry}


def made_name(pod: str, entry: str, uid: str) -> str:
    """Of what is too long both parts keep their share."""
    length = len(f"{pod}-{entry}-")
    if length > LONGEST_BASE:
        pod, entry = (text[: len(text) * LONGEST_BASE // length].rstrip("-.") for text in (pod, entry))
    return f"{pod}-{entry}-{_suffix(f'{uid}/{entry}')}"


def _suffix(words: str) -> str:
    number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")
    letters = ""
    for _ in range(SUFFIX_LETTERS):
        number, place = divmod(number, len(LETTERS))
        letters += LETTERS[place]
    return letters


def _uuid(words: str) -> str:
    return str(UUID(bytes=hashlib.sha256(words.encode()).digest()[:16], version=4))
