#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print what kepd is made of as an SPDX 2.3 document in JSON, from the locked requirements.

`--debian STATUS` adds the packages of a dpkg status file, for an image. The same tree gives the same bytes: the time is
SOURCE_DATE_EPOCH, and the name of the document is a hash of what it was made from. Needs nothing but Python, so that an
image can be described while it is built.
"""

import hashlib
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "scripts" / "locks" / "runtime.lock"
# Packages of this tree, at the version of the whole.
PARTS = ("kepd-devices", "kepd-dns", "kepd-ui", "kepd-door", "kepd-rehearsal")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def version() -> str:
    """Ours."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "agent" / "__init__.py").read_text())
    if found is None:
        raise SystemExit("agent/__init__.py names no __version__")
    return found[1]


def requirements(text: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and the hashes of the files that may be installed, in the order of the lock file."""
    found: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        if pinned := PINNED.match(line):
            found.append((pinned[1], pinned[2].rstrip("\\").strip(), []))
        if digest := HASH.search(line):
            found[-1][2].append(digest[1])
    return found


def package(name: str, number: str, digests: list[str]) -> dict[str, object]:
    """One requirement. SPDX has room for the hash of one file; the lock file lists those of all platforms."""
    return {
        "SPDXID": f"SPDXRef-{re.sub('[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": number,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"any of {len(digests)} files: " + " ".join(f"sha256:{one}" for one in digests),
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{name.lower().replace('_', '-')}@{number}",
            }
        ],
    }


def debian_packages(status: str) -> list[dict[str, object]]:
    """Those that are installed, of a dpkg status file."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Za-z-]+): (.*)$", paragraph))
        if fields.get("Status", "").endswith(" installed"):
            name, number, kind = fields["Package"], fields["Version"], fields["Architecture"]
            version = number.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")
            found.append(
                package(name, number, [])
                | {
                    "SPDXID": f"SPDXRef-deb-{name.replace('+', '-plus')}-{kind}",
                    "downloadLocation": "NOASSERTION",
                    "comment": f"of Debian, source package {fields.get('Source', name).split()[0]}",
                    "externalRefs": [
                        {
                            "referenceCategory": "PACKAGE-MANAGER",
                            "referenceType": "purl",
                            "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={kind}",
                        }
                    ],
                }
            )
    return sorted(found, key=lambda one: str(one["SPDXID"]))


def document(status: str = "") -> dict[str, object]:
    """The whole."""
    lock = LOCK.read_text()
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    ours = [
        package(name, version(), [])
        | {
            "downloadLocation": "NOASSERTION",
            "licenseConcluded": "Apache-2.0",
            "licenseDeclared": "Apache-2.0",
            "comment": "this program" if name == "kepd" else "a part of this program",
        }
        for name in ("kepd", *PARTS)
    ]
    of = hashlib.sha256((lock + status).encode()).hexdigest()
    packages = [*ours, *(package(*one) for one in requirements(lock)), *debian_packages(status)]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"kepd-{version()}",
        "documentNamespace": f"https://kepd.dev/sbom/{version()}/{of}",
        "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: scripts/sbom.py"]},
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": "SPDXRef-kepd",
            },
            *(
                {
                    "spdxElementId": "SPDXRef-kepd",
                    "relationshipType": "DEPENDS_ON",
                    "relatedSpdxElement": one["SPDXID"],
                }
                for one in packages[1:]
            ),
        ],
    }


if __name__ == "__main__":
    words = sys.argv[1:]
    if words and (len(words) != 2 or words[0] != "--debian"):
        raise SystemExit("scripts/sbom.py [--debian STATUS]")
    json.dump(document(Path(words[1]).read_text() if words else ""), sys.stdout, indent=2)
    print()
