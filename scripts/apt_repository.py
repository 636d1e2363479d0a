#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A repository for apt: `scripts/apt_repository.py FOLDER PACKAGE.deb… [--key KEY]`.

In FOLDER: pool/ with the packages, dists/ with what apt reads, by the Debian release that a package's version names,
and kepd-archive.gpg, the public part of KEY (as gpg names it), which signs. Packages that are there already stay, so
that a machine finds former versions; a package of the same name with other content is refused. The same packages and
key give the same bytes. Needs Debian's dpkg-deb, and gpg where it signs.
"""

import argparse
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

SUITES = {"12": "bookworm", "13": "trixie"}
OF_RELEASE = re.compile(r"~deb([^_]+)_([a-z0-9]+)\.deb$")


def suite_of(package: Path) -> tuple[str, str]:
    """Suite and architecture."""
    found = OF_RELEASE.search(package.name)
    # One that is not released has no number.
    if found is None or not (found[1] in SUITES or found[1].isalpha()):
        raise SystemExit(f"{package.name}: its version names no release of Debian; expected: …~deb12_… or …~deb13_…")
    return SUITES.get(found[1], found[1]), found[2]


def take(folder: Path, package: Path) -> None:
    """Into the pool."""
    kept = folder / "pool" / package.name
    if kept.exists() and kept.read_bytes() != package.read_bytes():
        raise SystemExit(f"{kept} is there with other content; a version that people may have never changes")
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package, kept)


def entry(package: Path) -> str:
    """What apt reads of one package."""
    control = subprocess.run(["dpkg-deb", "-f", str(package)], check=True, capture_output=True, text=True).stdout
    data = package.read_bytes()
    return (
        f"{control.rstrip()}\nFilename: pool/{package.name}\nSize: {len(data)}\n"
        f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
    )


def write_suite(place: Path, packages: dict[str, list[Path]], date: str) -> None:
    """`packages` by architecture; without a signature."""
    listed = []
    for architecture, found in sorted(packages.items()):
        text = "\n".join(map(entry, found)).encode()
        index = place / "main" / f"binary-{architecture}"
        index.mkdir(parents=True, exist_ok=True)
        for name, data in (("Packages", text), ("Packages.gz", gzip.compress(text, mtime=0))):
            (index / name).write_bytes(data)
            listed.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} main/{index.name}/{name}")
    lines = [
        "Origin: kepd", "Label: kepd", f"Suite: {place.name}", f"Codename: {place.name}", f"Date: {date}",
        f"Architectures: {' '.join(sorted(packages))}", "Components: main", "SHA256:", *listed,
    ]  # fmt: skip
    (place / "Release").write_text("\n".join(lines) + "\n")


def gpg(*words: str) -> bytes:
    done = subprocess.run(["gpg", "--batch", "--yes", "--quiet", *words], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"gpg {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def born_s(key: str) -> int:
    """When the key was made: it cannot have signed before."""
    listed = gpg("--with-colons", "--list-keys", key).decode()
    return max(int(line.split(":")[5]) for line in listed.splitlines() if line.startswith(("pub:", "sub:")))


def sign(place: Path, key: str, when_s: int) -> None:
    own = ("--local-user", key, "--faked-system-time", f"{when_s}!", "--digest-algo", "SHA512")
    release = str(place / "Release")
    gpg(*own, "--clearsign", "--output", str(place / "InRelease"), release)
    gpg(*own, "--armor", "--detach-sign", "--output", str(place / "Release.gpg"), release)


def main(words: list[str]) -> int:
    asked = argparse.ArgumentParser(prog="scripts/apt_repository.py")
    asked.add_argument("folder", type=Path)
    asked.add_argument("packages", type=Path, nargs="+")
    asked.add_argument("--key", default="")
    asked.add_argument("--date", type=int, default=0, help="of the release, in seconds since 1970")
    given = asked.parse_args(words)
    for package in given.packages:
        suite_of(package)
        take(given.folder, package)
    suites: dict[str, dict[str, list[Path]]] = {}
    for package in sorted((given.folder / "pool").glob("*.deb")):
        suite, architecture = suite_of(package)
        suites.setdefault(suite, {}).setdefault(architecture, []).append(package)
    when_s = max(given.date, born_s(given.key)) if given.key else given.date
    for suite, found in sorted(suites.items()):
        place = given.folder / "dists" / suite
        write_suite(place, found, formatdate(when_s, usegmt=True).replace("GMT", "UTC"))
        if given.key:
            sign(place, given.key, when_s)
    if given.key:
        (given.folder / "kepd-archive.gpg").write_bytes(gpg("--export", given.key))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
