# SPDX-License-Identifier: Apache-2.0
"""How large an image is, by its manifest alone, which may be an index of several platforms.

Never: trusts what it reads further than a number: a digest that is not one is never asked for.
Source of behaviour: containerd `platforms` for which variants an architecture runs.
"""

import re

from agent.drivers.registry.errors import ProbeFailed
from agent.model.images.manifest import BlobPlatform, ImageDocument
from agent.model.images.platform import ImagePlatform

KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in (*KINDS, "docker.distribution.manifest.v2"))
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")


def total_bytes(document: ImageDocument) -> int | None:
    """Config and layers together, a blob that is in it twice once; None for an index."""
    if document.config is None or document.layers is None:
        return None
    return sum({blob.digest: blob.size for blob in (document.config, *document.layers)}.values())


def choose_entry(document: ImageDocument, platform: ImagePlatform) -> str:
    """The digest of the manifest for a platform. Raises ProbeFailed if there is none."""
    entries = document.manifests or ()
    wanted = [BlobPlatform(platform.os, platform.architecture, variant) for variant in platform.variants]
    found = [entry.digest for one in wanted for entry in entries if entry.platform == one]
    if len(entries) == 1 and entries[0].platform is None:
        found.append(entries[0].digest)
    if not found:
        raise ProbeFailed(f"the index has no manifest for {platform.os}/{platform.architecture}")
    if DIGEST.fullmatch(found[0]) is None:
        raise ProbeFailed("the index names a digest that is malformed")
    return found[0]
