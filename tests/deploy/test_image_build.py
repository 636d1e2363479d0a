# SPDX-License-Identifier: Apache-2.0
"""The container image, really built by `scripts/image` on a base made of Debian's packages, looked into, and run.

Everything of the builder lies below one directory, so nothing of it is left.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent import __version__
from tests.host.process import ROOT
from tests.lab import Lab
from tests.lab.mounts import file_system_of
from tests.lab.namespace import Namespace

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

MIB = 1 << 20
MOST_BEYOND_BASE_BYTES = 120 * 1000 * 1000
EPOCH = "1700000000"
BASE, TAG = "localhost/kepd-base:test", "localhost/kepd:test"
OF_THIS_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""How packages are reached from here; the Dockerfile takes the first away again."""
PROGRAMS = ("nft", "conntrack", "iptables", "ip6tables", "xtables-", "ldconfig", "python3")
DROPPED = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
    "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip
"""What `ctr run` gives where nothing is said."""
SERVICE = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec: {clusterIP: 10.96.0.10, ports: [{name: h, port: 80}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: h, port: 8080}]
  endpoints: [{addresses: [10.1.0.1]}]
"""


@dataclass(frozen=True)
class Builder:
    """buildah with a store of its own."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        # Where containers cannot be nested a change of the root directory is enough to run apt and pip.
        own = {"CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}
        return {**os.environ, **own, "SOURCE_DATE_EPOCH": EPOCH}

    def run(self, *command: str, within_s: float = 600.0) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=within_s, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    def image(self, tag: str) -> dict[str, object]:
        shown = json.loads(self.run("buildah", "inspect", "--type", "image", tag))
        made: dict[str, object] = shown
        return made

    def mounted(self, tag: str) -> Path:
        container = self.run("buildah", "from", "--pull-never", tag).strip()
        return Path(self.run("buildah", "mount", container).strip())


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    assert shutil.which("buildah"), "no builder of container images here; scripts/prepare installs buildah"
    folder = tmp_path_factory.mktemp("builder")
    # By layers, where those do not lie on layers: else each step copies all files.
    driver = "vfs" if file_system_of(folder) == "overlay" else "overlay"
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    made = Builder(folder)
    try:
        make_base(made)
        made.run("scripts/image", "--tag", TAG, "--base", BASE, "--sbom", str(folder / "sbom.json"))
        yield made
    finally:
        made.run("buildah", "umount", "--all")
        made.run("buildah", "rm", "--all")
        shutil.rmtree(folder)


def make_base(made: Builder) -> None:
    """Debian without anything more, as the published images are, and a way to its packages from here."""
    archive = str(made.folder / "base.tar")
    made.run("mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", "bookworm", archive)
    context = made.folder / "context"
    context.mkdir()
    (made.folder / "base.tar").rename(context / "base.tar")
    lines = ["FROM scratch", "ADD base.tar /"]
    for path in filter(lambda one: Path(one).is_file(), OF_THIS_MACHINE):
        name = path.strip("/").replace("/", "-")
        shutil.copy(path, context / name)
        lines.append(f"COPY {name} {path}")
    (context / "Dockerfile").write_text("\n".join(lines))
    made.run("buildah", "build", "--quiet", "--tag", BASE, str(context))
    shutil.rmtree(context)


@pytest.fixture(scope="module")
def root(builder: Builder) -> Path:
    """The files of the image."""
    return builder.mounted(TAG)


def size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def test_it_is_small_beside_its_base(builder: Builder, root: Path) -> None:
    """OCI-02."""
    assert size_bytes(root) - size_bytes(builder.mounted(BASE)) < MOST_BEYOND_BASE_BYTES
    assert size_bytes(root) < 250 * MIB


def test_only_programs_that_kepd_calls_are_in_it(root: Path) -> None:
    """OCI-01: no shell, no package manager, no compiler."""
    found = [path for folder in ("usr/bin", "usr/sbin") for path in (root / folder).iterdir()]
    strange = [path.name for path in found if not path.name.startswith(PROGRAMS)]

    assert strange == []
    assert not (root / "bin/sh").exists()
    assert not (root / "etc/pip.conf").exists()
    assert not list((root / "opt/kepd/bin").glob("pip*"))
    assert not [
        path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6000
    ]


def test_its_programs_start(root: Path) -> None:
    for command, words in {
        ("/opt/kepd/bin/kepd", "--version"): __version__,
        ("/opt/kepd/bin/kepctl", "version"): __version__,
        ("/opt/kepd/bin/kepd", "config", "check"): "",
        ("/usr/sbin/nft", "--version"): "nftables v",
        ("/usr/sbin/iptables", "--version"): "nf_tables",
        ("/usr/sbin/conntrack", "--version"): "conntrack v",
        (
            "/opt/kepd/bin/python3",
            "-c",
            "import sys; sys.path.append('/usr/lib/python3/dist-packages'); import iptc",
        ): "",
    }.items():
        done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, words in done.stdout) == (0, True), (command, done.stdout, done.stderr)


def test_the_list_of_its_parts_is_in_it_and_beside_it(builder: Builder, root: Path) -> None:
    """OCI-03."""
    inside = json.loads((root / "opt/kepd/sbom.spdx.json").read_text())
    beside = json.loads((builder.folder / "sbom.json").read_text())

    assert inside == beside
    installed = {
        path.name.split("-")[0].replace("_", "-").lower()
        for path in root.glob("opt/kepd/lib/*/site-packages/*.dist-info")
    }
    names = {one["SPDXID"]: one["name"].replace("_", "-").lower() for one in inside["packages"]}
    assert installed - {"setuptools"} == {name for one, name in names.items() if not one.startswith("SPDXRef-deb-")}
    assert {"nftables", "iptables", "conntrack", "libc6"} <= set(names.values())


def test_the_same_tree_gives_the_same_image(builder: Builder) -> None:
    """OCI-03: bit by bit, on the same base with the same packages."""
    first = builder.image(TAG)["FromImageID"]
    arguments = ("--build-arg", f"BASE={BASE}", "--build-arg", f"VERSION={__version__}")
    dated = ("--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--timestamp", EPOCH)
    builder.run("buildah", "build", "--no-cache", "--quiet", *arguments, *dated, "--tag", "localhost/kepd:again", ".")

    assert builder.image("localhost/kepd:again")["FromImageID"] == first


def test_it_programs_services_with_one_capability_on_a_root_that_cannot_be_written(
    builder: Builder, lab: Lab, short_path: Path
) -> None:
    """DS-07: as the DaemonSet runs it, on containerd."""
    archive = builder.folder / "kepd.tar"
    builder.run("buildah", "push", "--quiet", TAG, f"docker-archive:{archive}:{TAG}")
    lab.containerd.import_archive(archive)
    archive.unlink()
    for name in ("manifests", "run", "state", "lock"):
        (short_path / name).mkdir()
    (short_path / "manifests/web.yaml").write_text(SERVICE)
    (short_path / "config.yaml").write_text(
        "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\nnode: {name: n1, addresses: [192.0.2.1]}\n"
        "services: {source: manifests, healthzAddress: '', conntrack: {maxPerCore: 0}}\napi: {readGroup: ''}\n"
    )
    mounts = {
        "/etc/kepd/manifests": "manifests",
        "/run/kepd": "run",
        "/var/lib/kepd": "state",
        "/run/kepd-locks": "lock",
    }
    mounts["/etc/kepd/config.yaml"] = "config.yaml"
    with Namespace() as space:
        space.run("ip", "link", "set", "lo", "up")
        flags = ["--read-only", "--with-ns", f"network:{space.path}", "--detach", "--cap-add", "CAP_NET_ADMIN"]
        flags += [flag for name in DROPPED for flag in ("--cap-drop", f"CAP_{name}")]
        flags += [
            flag for inside, name in mounts.items()
            for flag in ("--mount", f"type=bind,src={short_path / name},dst={inside},options=rbind:rw")
        ]  # fmt: skip
        snapshotter = ("--snapshotter", lab.containerd.snapshotter)
        command = ("/opt/kepd/bin/kepd", "run", "--planes", "services")
        lab.containerd.ctr("run", *snapshotter, *flags, TAG, "kepd-image", *command)
        try:
            wait_for_rules(space, "10.96.0.10 . tcp . 80")
            listed = lab.containerd.ctr(
                "tasks", "exec", "--exec-id", "x", "kepd-image", "/opt/kepd/bin/kepctl", "get", "planes"
            )
            assert "services" in listed
            assert "ready" in listed
        finally:
            lab.containerd.ctr("tasks", "kill", "--signal", "SIGKILL", "kepd-image")
            wait_until_stopped(lab)
            lab.containerd.ctr("tasks", "delete", "kepd-image")
            lab.containerd.ctr("containers", "delete", "kepd-image")
            lab.containerd.ctr("images", "remove", "--sync", TAG)


def wait_for_rules(space: Namespace, element: str) -> None:
    deadline = time.monotonic() + 60.0
    while "kepd" not in space.run("nft", "list", "tables") or element not in space.run("nft", "list", "ruleset"):
        assert time.monotonic() < deadline, "no rules after a minute"
        time.sleep(0.1)


def wait_until_stopped(lab: Lab) -> None:
    deadline = time.monotonic() + 20.0
    while "RUNNING" in lab.containerd.ctr("tasks", "list"):
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.1)


def test_one_command_makes_a_release_and_leaves_the_tree_as_it_is(builder: Builder, tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    (tree / "changelog.d/one.fix.md").write_text("A fault is gone.\n")
    named = ("-c", "user.name=one", "-c", "user.email=one@kepd.dev")
    for words in (("add", "-A"), (*named, "commit", "-q", "-m", "deploy: mend a fault")):
        subprocess.run(["git", "-C", str(tree), *words], check=True)
    keys = tmp_path / "k"
    keys.mkdir(mode=0o700)
    own = ("env", f"GNUPGHOME={keys}")
    builder.run(*own, "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "one", "ed25519", "sign")
    given = ("--base", BASE, "--key", "one", "--out", str(out))
    said = builder.run(*own, str(tree / "scripts/release"), "9.0.0", *given)
    builder.run(*own, "gpg", "--batch", "--quiet", "--verify", str(out / "SHA256SUMS.asc"), str(out / "SHA256SUMS"))
    builder.run(*own, "gpgconf", "--kill", "all")
    builder.run("buildah", "pull", "--quiet", f"oci-archive:{out}/kepd-9.0.0.oci.tar")
    sums = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out, capture_output=True, check=False)
    commit = said.split("git merge --ff-only ")[1].split()[0]
    released, left, tags = (
        subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=True).stdout
        for words in (("show", f"{commit}:agent/__init__.py"), ("status", "--porcelain"), ("tag",))
    )
    (package,) = out.glob("kepd_9.0.0-*.deb")
    names = {path.name for path in out.iterdir()}
    summed = {line.split()[1] for line in (out / "SHA256SUMS").read_text().splitlines()}

    assert {one for one in names if not one.startswith("kepd_")} == {
        "kepd-9.0.0.oci.tar", "kepd-9.0.0-deploy.tar", "kepd-9.0.0.tar.gz", "kepd-9.0.0-py3-none-any.whl", "apt",
        "kepd-chart-9.0.0.tgz", "kepd.spdx.json", "provenance.json", "provenance.json.asc", "CHANGELOG.md", "NOTES.md",
        "SHA256SUMS", "SHA256SUMS.asc",
    }  # fmt: skip
    assert sums.returncode == 0, sums.stderr
    assert names - summed == {"apt", "SHA256SUMS", "SHA256SUMS.asc", "provenance.json.asc"}
    assert "\n- A fault is gone.\n" in (out / "NOTES.md").read_text()
    assert (out / "apt/pool" / package.name).read_bytes() == package.read_bytes()
    assert '__version__ = "9.0.0"' in released
    assert (left, tags) == ("", "")
    assert (out / "CHANGELOG.md").read_text().startswith("# Changes\n\n## 9.0.0 (")
    assert commit in (out / "provenance.json").read_text()


def test_a_release_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    done = subprocess.run([str(tree / "scripts/release"), "0.0.1"], capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "version 0.0.1 does not follow" in done.stderr
