# SPDX-License-Identifier: Apache-2.0
"""The archive of an image for several processors, as a release writes it."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.host.process import ROOT

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
TAG = {"org.opencontainers.image.ref.name": "localhost/kepd:1.2.3"}


def archive(path: Path, processor: str, minute: int = 0) -> Path:
    """As a builder writes it: with the minute, and a file of its own."""
    files: dict[str, bytes] = {"oci-layout": b"{}", "manifest.json": b"[]"}

    def put(data: dict[str, Any]) -> tuple[str, int]:
        text = json.dumps(data).encode()
        digest = hashlib.sha256(text).hexdigest()
        files[f"blobs/sha256/{digest}"] = text
        return f"sha256:{digest}", len(text)

    config, _ = put({"architecture": processor, "os": "linux"})
    digest, size = put({"mediaType": MANIFEST, "config": {"digest": config}, "layers": []})
    one = {"mediaType": MANIFEST, "digest": digest, "size": size, "annotations": TAG}
    files["index.json"] = json.dumps({"manifests": [one]}).encode()
    with tarfile.open(path, "w") as written:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), minute
            written.addfile(member, io.BytesIO(data))
    return path


def join(out: Path, *archives: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts/oci_archive.py"), str(out), *map(str, archives)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def read(out: Path, name: str) -> Any:
    with tarfile.open(out) as opened:
        file = opened.extractfile(name)
        assert file is not None
        return json.loads(file.read())


def test_one_tag_leads_to_the_image_of_each_processor(tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    done = join(out, archive(tmp_path / "a.tar", "amd64"), archive(tmp_path / "b.tar", "arm64"))
    (tagged,) = read(out, "index.json")["manifests"]
    listed = read(out, f"blobs/{tagged['digest'].replace(':', '/')}")["manifests"]

    assert done.stdout.strip() == tagged["digest"]
    assert tagged["annotations"] == TAG
    assert [one["platform"]["architecture"] for one in listed] == ["amd64", "arm64"]
    for one in listed:
        manifest = read(out, f"blobs/{one['digest'].replace(':', '/')}")
        config = read(out, f"blobs/{manifest['config']['digest'].replace(':', '/')}")
        assert config["architecture"] == one["platform"]["architecture"]


def test_an_image_alone_stays_what_it_is_and_the_minute_goes(tmp_path: Path) -> None:
    first, second = archive(tmp_path / "a.tar", "amd64", 1), archive(tmp_path / "b.tar", "amd64", 2)
    digest = read(first, "index.json")["manifests"][0]["digest"]

    assert {join(tmp_path / "1.tar", first).stdout, join(tmp_path / "2.tar", second).stdout} == {f"{digest}\n"}
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_two_for_the_same_processor_are_refused(tmp_path: Path) -> None:
    done = join(tmp_path / "out.tar", archive(tmp_path / "a.tar", "amd64"), archive(tmp_path / "b.tar", "amd64"))

    assert done.returncode != 0
    assert "for the same processor" in done.stderr
    assert not (tmp_path / "out.tar").exists()
