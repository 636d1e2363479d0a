#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What belongs to a released image: `scripts/release.py NAME@sha256:… [--base NAME@sha256:…] [--out dist/release]`.

Writes deploy/ with the image by digest in all that it renders, the list of parts that scripts/image made, and a
statement of provenance (in-toto, SLSA 1.0) about commit, base and locked requirements. A tag can be moved to another
image, so an image without a digest is refused; a base or a tree that is not pinned is said in the statement.
Needs nothing but Python and git. Signs nothing: who releases signs the statement with a key of their own.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED = re.compile(r"(?P<name>[a-z0-9][a-z0-9._:/-]*)@sha256:(?P<digest>[0-9a-f]{64})")
NAMING = ("deploy/base/kustomization.yaml", "deploy/components/dns/kustomization.yaml")
IMAGES = "images:\n  - name: kepd\n    newTag: "


def pinned(text: str) -> tuple[str, str]:
    """Name and digest."""
    found = PINNED.fullmatch(text)
    if found is None:
        raise SystemExit(f"{text} is not named by digest; expected: registry.example/kepd@sha256:…")
    return found["name"], found["digest"]


def write_deploy(out: Path, name: str, digest: str) -> None:
    """Everything that deploy/ renders has the image by digest."""
    shutil.copytree(ROOT / "deploy", out / "deploy", ignore=shutil.ignore_patterns("vagrant", "debian"))
    pin = f"images:\n  - name: kepd\n    newName: {name}\n    digest: sha256:{digest}"
    for place in NAMING:
        path = out / place
        before, sign, rest = path.read_text().partition(IMAGES)
        if not sign:
            raise SystemExit(f"{place} does not name the image as expected; nothing is pinned")
        path.write_text(before + pin + "\n" + rest.partition("\n")[2])


def git(*words: str) -> str:
    """Nothing where there is no repository."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def statement(name: str, digest: str, base: str) -> dict[str, object]:
    """Provenance of an image."""
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain")
    lock = hashlib.sha256((ROOT / "scripts/locks/runtime.lock").read_bytes()).hexdigest()
    materials = [{"name": "scripts/locks/runtime.lock", "digest": {"sha256": lock}}]
    if commit:
        materials.append({"name": "source", "digest": {"gitCommit": commit}})
    if base:
        base_name, base_digest = pinned(base)
        materials.append({"name": base_name, "digest": {"sha256": base_digest}})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://kepd.dev/build/scripts-image/v1",
                "externalParameters": {"base": base or "not named by digest"},
                "internalParameters": {"treeHasChanges": bool(changed) or not commit},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": "https://kepd.dev/build/scripts-image"}},
        },
    }


def main(words: list[str]) -> int:
    """Write all of it."""
    asked = argparse.ArgumentParser(prog="scripts/release.py")
    asked.add_argument("image")
    asked.add_argument("--base", default="")
    asked.add_argument("--out", type=Path, default=ROOT / "dist/release")
    asked.add_argument("--sbom", type=Path, default=ROOT / "dist/kepd.spdx.json")
    given = asked.parse_args(words)
    name, digest = pinned(given.image)
    provenance = statement(name, digest, given.base)
    if not given.sbom.is_file():
        raise SystemExit(f"{given.sbom} is not there; scripts/image writes it")
    given.out.mkdir(parents=True)
    write_deploy(given.out, name, digest)
    shutil.copy(given.sbom, given.out / "kepd.spdx.json")
    (given.out / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
    if not given.base:
        print("==> the base is not named by digest; provenance.json says so", file=sys.stderr)
    print(f"==> {given.out}: deploy/ with {given.image}, kepd.spdx.json, provenance.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
