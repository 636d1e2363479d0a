# SPDX-License-Identifier: Apache-2.0
"""Tiny OCI images made of busybox and layers of a given size, without any image tool.

Owns: layers, configuration, manifest and the layout on disk. The same description gives the same digests on any
machine with the same busybox; layers with the same name and size are the same blob, so images can share them.
Never: talks to a registry or to containerd. KEPD_LAB_CACHE names a directory that keeps layouts between runs.
"""

import gzip
import hashlib
import io
import json
import os
import platform
import random
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["STAY", "Image", "Layer", "OciImage", "build", "cache_directory"]

FORMAT = 1  # part of the cache key: raise it when the same description shall give other bytes
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
THIS = ARCHITECTURES.get(platform.machine(), platform.machine())
DIRECTORIES = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var")
APPLETS = (
    *(
        "cat",
        "date",
        "dd",
        "echo",
        "env",
        "false",
        "grep",
        "hostname",
        "httpd",
        "id",
        "ip",
        "kill",
        "ls",
        "mkdir",
        "nc",
    ),
    *("nslookup", "ping", "ps", "rm", "sed", "seq", "sh", "sleep", "sort", "tail", "test", "touch", "tr", "true", "wc"),
    "wget",
)
STAY = ("/bin/sh", "-c", 'trap "exit 0" TERM; sleep 2147483 & wait')
"""Runs until SIGTERM and then ends at once; a shell without the trap would ignore the signal (LAB-19)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Random bytes that do not compress, the same for the same name and size."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Description of an image; `name` is a path such as `lab/web`, without a registry."""

    name: str
    tag: str = "1"
    layers: Sequence[Layer] = ()
    programs: Sequence[str] = ()
    """Paths of this machine's programs without libraries, which are in its /bin by their names."""
    command: Sequence[str] = STAY
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    @staticmethod
    def sized(name: str, *sizes_bytes: int, tag: str = "1") -> "Image":
        """An image with own layers of these sizes, shared with no other image."""
        layers = tuple(Layer(name=f"{name}:{tag}/{i}", size_bytes=size) for i, size in enumerate(sizes_bytes))
        return Image(name=name, tag=tag, layers=layers)

    def reference(self, registry: str) -> str:
        return f"{registry}/{self.name}:{self.tag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OciImage:
    """A built image: an OCI layout directory with one manifest."""

    layout: Path
    digest: str
    layer_digests: tuple[str, ...]
    layer_bytes: int

    def archive(self, reference: str, target: Path) -> Path:
        """Write a tar that `ctr images import` takes under the name `reference`."""
        index = json.loads((self.layout / "index.json").read_text("utf-8"))
        index["manifests"][0]["annotations"] = {"io.containerd.image.name": reference}
        with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
            for path in sorted((self.layout / "blobs" / "sha256").iterdir()):
                tar.add(path, f"blobs/sha256/{path.name}")
            tar.add(self.layout / "oci-layout", "oci-layout")
            _add_file(tar, "index.json", json.dumps(index).encode())
        return target


def cache_directory(fallback: Path) -> Path:
    """Where layouts are kept: KEPD_LAB_CACHE, else `fallback`."""
    configured = os.environ.get("KEPD_LAB_CACHE")
    directory = Path(configured) if configured else fallback
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def build(image: Image, busybox: Path, folder: Path, architecture: str = "") -> OciImage:
    """The layout of `image`, from the cache if it is there; several processes may build the same at once. Without an
    architecture it is for this machine, which each busybox tells from the others."""
    programs = [_digest_of(Path(path)) for path in image.programs]
    description = json.dumps([FORMAT, asdict(image), _digest_of(busybox), *programs], sort_keys=True)
    layout = folder / _sha256(description.encode())[:24]
    if not layout.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        try:
            _write_layout(image, busybox, draft, architecture or THIS)
            draft.rename(layout)
        except OSError:
            if not layout.is_dir():  # otherwise another process was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return _read_layout(layout)


def _read_layout(layout: Path) -> OciImage:
    digest: str = json.loads((layout / "index.json").read_text("utf-8"))["manifests"][0]["digest"]
    manifest = json.loads((layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_text("utf-8"))
    return OciImage(
        layout=layout,
        digest=digest,
        layer_digests=tuple(layer["digest"] for layer in manifest["layers"]),
        layer_bytes=sum(layer["size"] for layer in manifest["layers"]),
    )


def _write_layout(image: Image, busybox: Path, layout: Path, architecture: str) -> None:
    (layout / "blobs" / "sha256").mkdir(parents=True)
    tars = [_sized_tar(layer) for layer in image.layers]
    if image.programs:
        tars.append(_programs_tar(image.programs))
    base, first = _base_layer(busybox)
    # what is random does not get smaller, and programs stay here: level 0 spares the time
    packed = [first, *(gzip.compress(tar, 0, mtime=0) for tar in tars)]
    layers = [_blob(layout, LAYER_TYPE, content) for content in packed]
    digests = [base, *(_sha256(tar) for tar in tars)]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Cmd": list(image.command),
            "Env": ["PATH=/bin", *(f"{key}={value}" for key, value in sorted(image.environment.items()))],
            "Labels": dict(image.labels),
            "StopSignal": "SIGTERM",
            "User": image.user,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": f"lab layer {number}"} for number in range(len(digests))],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _blob(layout, CONFIG_TYPE, json.dumps(config).encode()),
        "layers": layers,
    }
    entry = _blob(layout, MANIFEST_TYPE, json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}), "utf-8")


def _blob(layout: Path, media_type: str, content: bytes) -> dict[str, object]:
    digest = _sha256(content)
    (layout / "blobs" / "sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


@cache
def _base_layer(busybox: Path) -> tuple[str, bytes]:
    """The digest of the layer that all have, and the layer, packed."""
    tar = _busybox_tar(busybox)
    return _sha256(tar), gzip.compress(tar, 1, mtime=0)


@cache
def _digest_of(program: Path) -> str:
    return _sha256(program.read_bytes())


def _busybox_tar(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in DIRECTORIES:
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(directory)
        _add_file(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        _add_file(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
        _add_file(tar, "etc/group", b"root:x:0:\nnobody:x:65534:\n")
    return buffer.getvalue()


def _sized_tar(layer: Layer) -> bytes:
    buffer = io.BytesIO()
    content = random.Random(f"{layer.name} {layer.size_bytes}").randbytes(layer.size_bytes)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        _add_file(tar, f"var/{_sha256(layer.name.encode())[:16]}", content)
    return buffer.getvalue()


def _programs_tar(programs: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in map(Path, programs):
            _add_file(tar, f"bin/{path.name}", path.read_bytes(), 0o755)
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
