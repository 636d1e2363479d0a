# SPDX-License-Identifier: Apache-2.0
"""Lists images that any pod may use without a check of its credentials.

Source of behaviour: KEP-2535, kubernetes `pkg/kubelet/images/pullmanager`; IMG-V01.
"""

from collections.abc import Sequence

from agent.model.image_reference import ReferenceInvalid, parse_reference, record_key

__all__ = ["allowlist_fault", "is_allowed"]

ANY_BELOW = "/*"


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
