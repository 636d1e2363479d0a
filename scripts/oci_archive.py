#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One image for several processors: `scripts/oci_archive.py OUT.tar ARCHIVE.tar…`, and its digest on standard output.

Each ARCHIVE is an OCI archive as docker, podman or buildah write it, with one image. OUT has all of them below the tag
of the first, through an index where they are several, and nothing of the minute in which it was written: the same
images give the same bytes.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
PLATFORM = ("architecture", "os", "variant")


def files_of(archive: Path) -> dict[str, bytes]:
    """By their names in it, without what a builder adds for itself."""
    with tarfile.open(archive) as opened:
        found = {
            member.name.removeprefix("./"): opened.extractfile(member).read()  # type: ignore[union-attr]
            for member in opened
            if member.isfile()
        }
    return {name: data for name, data in found.items() if name in ("index.json", "oci-layout") or "blobs/" in name}


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def described(files: dict[str, bytes], manifest: dict[str, Any]) -> dict[str, Any]:
    """What an index says of one image: its configuration knows for which processor it is."""
    config = json.loads(files[blob(json.loads(files[blob(manifest["digest"])])["config"]["digest"])])
    platform = {name: config[name] for name in PLATFORM if config.get(name)}
    return {
        "mediaType": manifest["mediaType"],
        "digest": manifest["digest"],
        "size": manifest["size"],
        "platform": platform,
    }


def joined(archives: list[Path]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    images, tag = [], None
    for archive in archives:
        found = files_of(archive)
        listed = json.loads(found["index.json"])["manifests"]
        if len(listed) != 1:
            raise SystemExit(f"{archive} has {len(listed)} images; expected: one")
        tag = tag or listed[0]
        images.append(described(found, listed[0]))
        files |= found
    if len({json.dumps(one["platform"]) for one in images}) < len(images):
        raise SystemExit(f"two archives are for the same processor: {[one['platform'] for one in images]}")
    if len(images) > 1:
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": images}).encode()
        digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
        files[blob(digest)] = index
        tag = {**(tag or {}), "mediaType": INDEX, "digest": digest, "size": len(index)}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [tag]}).encode()
    return files


def main(words: list[str]) -> int:
    if len(words) < 2:
        raise SystemExit(__doc__)
    out, *archives = map(Path, words)
    files = joined(archives)
    with tarfile.open(out, "w") as written:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(files[name]), 0o644
            written.addfile(member, io.BytesIO(files[name]))
    print(json.loads(files["index.json"])["manifests"][0]["digest"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
