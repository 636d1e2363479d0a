# SPDX-License-Identifier: Apache-2.0
"""An archive of the suite's agnhost that lacks the certificate of `localhost`, with one: specs of StatefulSets ask for
that file, and those of hooks by HTTPS serve with it."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FILES = ("localhost.crt", "localhost.key")
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DAYS = "3650"


def completed(archive: Path, folder: Path) -> Path:
    """The archive itself where it has them, or is of another image."""
    if "agnhost" not in archive.name:
        return archive
    with tarfile.open(archive) as opened:
        blobs = {one.name: _content(opened, one) for one in opened.getmembers() if one.isfile()}
    if "index.json" not in blobs or _has_files(blobs):
        return archive
    made = folder / archive.name
    with tarfile.open(made, "w") as target:
        for name, content in _with_layer(blobs, _files()).items():
            _add(target, name, content)
    return made


def _content(opened: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = opened.extractfile(member)
    return stream.read() if stream is not None else b""


def _blob(blobs: dict[str, bytes], digest: str) -> Any:  # JSON
    return json.loads(blobs[_place(digest)])


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


def _has_files(blobs: dict[str, bytes]) -> bool:
    index = json.loads(blobs["index.json"])
    for layer in _blob(blobs, index["manifests"][0]["digest"])["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blobs[_place(layer["digest"])])) as opened:
            if {name.lstrip("./") for name in opened.getnames()} & set(FILES):
                return True
    return False


def _files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        crt, key = (Path(place) / name for name in FILES)
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(crt), "-keyout", str(key)]
        subprocess.run([*command, *names], check=True, capture_output=True)
        return {path.name: path.read_bytes() for path in (crt, key)}


def _with_layer(blobs: dict[str, bytes], files: dict[str, bytes]) -> dict[str, bytes]:
    made, index = dict(blobs), json.loads(blobs["index.json"])
    manifest = _blob(blobs, index["manifests"][0]["digest"])
    config = _blob(blobs, manifest["config"]["digest"])
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as layer:
        for name, content in files.items():
            _add(layer, name, content)
    packed = gzip.compress(raw.getvalue(), 1, mtime=0)

    def put(content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        made[_place(digest)] = content
        return {"digest": digest, "size": len(content)}

    config["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(raw.getvalue()).hexdigest()}")
    if "history" in config:
        config["history"].append({"created_by": "certificate of localhost"})
    manifest["config"] |= put(json.dumps(config).encode())
    manifest["layers"].append({"mediaType": LAYER, **put(packed)})
    index["manifests"][0] |= put(json.dumps(manifest).encode())
    return made | {"index.json": json.dumps(index).encode()}


def _add(target: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    target.addfile(entry, io.BytesIO(content))
