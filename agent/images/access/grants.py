# SPDX-License-Identifier: Apache-2.0
"""Decides who may use an image on the node without asking its registry again, and what a pull adds to the record.

Never: sees a password: it compares hashes.
Source of behaviour: KEP-2535, kubernetes `pkg/kubelet/images/pullmanager`.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from agent.model.images.credential import Credential, SecretId
from agent.model.images.reference import ReferenceInvalid, parse_reference, record_key

MOST_PROOFS = 100
ANY_BELOW = "/*"


class VerifyPolicy(StrEnum):
    NEVER = "NeverVerify"
    NOT_PRELOADED = "NeverVerifyPreloadedImages"
    NOT_ALLOWLISTED = "NeverVerifyAllowlistedImages"
    ALWAYS = "AlwaysVerify"


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """`max_age_s`: a proof counts that long; 0 = for ever. `is_normalised`: spellings of one image are one image."""

    policy: VerifyPolicy = VerifyPolicy.NOT_PRELOADED
    allowlist: tuple[str, ...] = ()
    max_age_s: float = 0
    is_normalised: bool = True


class SecretProof(msgspec.Struct, frozen=True, gc=False):
    """A secret that got the image once."""

    namespace: str
    name: str
    uid: str
    hash: str
    at_s: float = 0.0

    def is_of(self, secret: SecretId) -> bool:
        return (self.namespace, self.name, self.uid) == (secret.namespace, secret.name, secret.uid)


class Proofs(msgspec.Struct, frozen=True, gc=False):
    """Who got one image from one repository. `node_at_s`: when every pod of the node proved it."""

    is_node_wide: bool = False
    secrets: tuple[SecretProof, ...] = ()
    node_at_s: float = 0.0


Claim = tuple[tuple[SecretId, str], ...]
"""What a pod could present: secrets with hashes."""


class AccessVerdict(msgspec.Struct, frozen=True):
    """`update` replaces the record, when the pod proved itself in a new way."""

    may_use: bool
    update: Proofs | None = None


USE = AccessVerdict(True)
VERIFY = AccessVerdict(False)


def claim_of(credentials: Sequence[Credential]) -> Claim:
    return tuple((one.secret, one.hash()) for one in credentials if one.secret is not None)


def is_check_needed(image: str, rules: AccessRules, *, is_pulled_by_us: bool) -> bool:
    """Whether the policy wants to know who asks. `is_pulled_by_us`: there is a record or an intent."""
    match rules.policy:
        case VerifyPolicy.NEVER:
            return False
        case VerifyPolicy.ALWAYS:
            return True
        case VerifyPolicy.NOT_PRELOADED:
            return is_pulled_by_us
        case VerifyPolicy.NOT_ALLOWLISTED:
            return not is_allowed(image, rules.allowlist, is_normalised=rules.is_normalised)


def who_may_use(image: str, proofs: Proofs | None, rules: AccessRules, *, is_pulled_by_us: bool) -> tuple[str, ...]:
    """The same as sentences for people."""
    if not is_check_needed(image, rules, is_pulled_by_us=is_pulled_by_us):
        reasons = {
            VerifyPolicy.NEVER: "nothing is checked",
            VerifyPolicy.NOT_PRELOADED: "it was not pulled by kepd or a kubelet through it",
            VerifyPolicy.NOT_ALLOWLISTED: "images.verify.allowlist has it",
        }
        return (f"every pod: images.verify.policy is {rules.policy}, and {reasons[rules.policy]}",)
    found = []
    if proofs is not None and proofs.is_node_wide:
        found.append("every pod: it was pulled without credentials, or with those of the node")
    secrets = sorted({f"{one.namespace}/{one.name}" for one in proofs.secrets}) if proofs is not None else []
    found += [f"pods with the pull secret {name}, by which it was pulled" for name in secrets]
    if rules.max_age_s and found:
        found.append(f"each of these for {rules.max_age_s:g} s after the pull (images.verify.maxAge)")
    if not (proofs is not None and proofs.is_node_wide):
        found.append("any other pod after a pull with its own credentials, which fetches nothing again")
    return tuple(found)


def judge(proofs: Proofs | None, claim: Claim, rules: AccessRules, now_s: float) -> AccessVerdict:
    """Whether a pod may use a present image that is checked. Without a record it has to prove itself."""
    if proofs is None:
        return VERIFY
    if proofs.is_node_wide and _counts(proofs.node_at_s, rules, now_s):
        return USE
    valid = [proof for proof in proofs.secrets if _counts(proof.at_s, rules, now_s)]
    for secret, digest in claim:
        by_hash = next((proof for proof in valid if proof.hash == digest), None)
        if by_hash is not None:
            known = any(proof.is_of(secret) for proof in proofs.secrets)
            return USE if known else AccessVerdict(True, _with_secret(proofs, secret, digest, by_hash.at_s))
        by_id = next((proof for proof in valid if proof.is_of(secret)), None)
        if by_id is not None and len(proofs.secrets) < MOST_PROOFS:
            return AccessVerdict(True, _with_secret(proofs, secret, digest, by_id.at_s))
    return VERIFY


def after_pull(proofs: Proofs | None, used: Credential | None, digest: str, now_s: float) -> Proofs:
    """The record after a pull that worked. `used`: None = anonymous; `digest`: its hash as records have it."""
    before = proofs or Proofs()
    if used is None or used.secret is None:
        return msgspec.structs.replace(before, is_node_wide=True, node_at_s=now_s)
    return _with_secret(before, used.secret, digest, now_s)


def _with_secret(proofs: Proofs, secret: SecretId, digest: str, at_s: float) -> Proofs:
    proof = SecretProof(secret.namespace, secret.name, secret.uid, digest, at_s)
    others = [one for one in proofs.secrets if not (one.is_of(secret) and one.hash == digest)]
    if len(others) >= MOST_PROOFS:
        return proofs
    return msgspec.structs.replace(proofs, secrets=(*others, proof))


def _counts(at_s: float, rules: AccessRules, now_s: float) -> bool:
    return not rules.max_age_s or now_s - at_s <= rules.max_age_s


def allowlist_fault(entry: str) -> str:
    """What is wrong with an entry; empty = nothing."""
    if entry != entry.strip():
        return f"leading/trailing spaces are not allowed: {entry}"
    if not entry:
        return f"the supplied pattern is too short: {entry}"
    stem = entry.removesuffix("*") if entry.endswith(ANY_BELOW) else entry
    if "*" in stem:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {entry}"
    if stem != entry:
        return "at least registry hostname is required" if stem == "/" else ""
    try:
        name = record_key(entry)
    except ReferenceInvalid as error:
        return f"failed to parse as an image name: {error.cause}"
    return "" if name == entry else f"neither tag nor digest is accepted in an image reference: {entry}"


def is_allowed(image: str, allowlist: Sequence[str], *, is_normalised: bool) -> bool:
    """Whether an entry covers an image. Normalised, `busybox` covers `docker.io/library/busybox` and the other way."""
    try:
        names = {record_key(image)}
        if is_normalised:
            names.add(parse_reference(image).repo)
    except ReferenceInvalid:
        return False
    return any(_covers(entry, name, is_normalised) for entry in allowlist for name in names)


def _covers(entry: str, name: str, is_normalised: bool) -> bool:
    if entry.endswith(ANY_BELOW):
        return name.startswith(entry.removesuffix("*"))
    if entry == name:
        return True
    if not is_normalised:
        return False
    try:
        return parse_reference(entry).repo == name
    except ReferenceInvalid:
        return False
