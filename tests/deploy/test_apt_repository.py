# SPDX-License-Identifier: Apache-2.0
"""The repository that a release writes, as apt itself sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.process import ROOT

CONTROL = (
    "Package: kepd\nVersion: {0}-1~deb{1}\nArchitecture: amd64\nMaintainer: one <one@kepd.dev>\nDescription: {0}\n"
)
CONTENT = ("Release", "InRelease", "Release.gpg", "main/binary-amd64/Packages", "main/binary-amd64/Packages.gz")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of gpg with one key. Its socket wants a short path."""
    home = tmp_path_factory.mktemp("k")
    home.chmod(0o700)
    command = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "kepd test", "ed25519", "sign"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "GNUPGHOME": str(home)})
    yield home
    subprocess.run(["gpgconf", "--kill", "all"], check=True, env={**os.environ, "GNUPGHOME": str(home)})


def package(folder: Path, version: str, release: str = "12", text: str = "") -> Path:
    tree = folder / f"tree-{version}-{release}"
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN/control").write_text(CONTROL.format(version, release) + text)
    made = folder / f"kepd_{version}-1~deb{release}_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(made)], check=True, capture_output=True)
    return made


def publish(folder: Path, keys: Path, *packages: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts/apt_repository.py"), str(folder), *map(str, packages)]
    return subprocess.run(
        [*command, "--key", "kepd test", "--date", "1700000000"],
        capture_output=True, text=True, check=False, env={**os.environ, "GNUPGHOME": str(keys)},
    )  # fmt: skip


def apt(state: Path, repository: Path, program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """With a state of its own, that knows this repository and no other."""
    for name in ("lists/partial", "cache/archives/partial", "empty", "etc"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "etc/kepd.sources").write_text(
        f"Types: deb\nURIs: file:{repository}\nSuites: bookworm\nComponents: main\nArchitectures: amd64\n"
        f"Signed-By: {repository}/kepd-archive.gpg\n"
    )
    own = {
        "Dir::State::Lists": "lists", "Dir::Cache": "cache", "Dir::State::status": "status",
        "Dir::Etc::SourceList": "etc/kepd.sources", "Dir::Etc::SourceParts": "empty",
    }  # fmt: skip
    options = [word for key, name in own.items() for word in ("-o", f"{key}={state / name}")]
    # As root apt would read as another user, for whom the directory of a test is closed.
    return subprocess.run(
        [program, "-o", "APT::Sandbox::User=root", *options, *words],
        capture_output=True, text=True, check=False, cwd=state,
    )  # fmt: skip


def test_apt_believes_it_and_finds_each_version(tmp_path: Path, keys: Path) -> None:
    repository = tmp_path / "apt"
    assert publish(repository, keys, package(tmp_path, "0.9.0"), package(tmp_path, "0.9.0", "13")).returncode == 0
    assert publish(repository, keys, package(tmp_path, "0.10.0")).returncode == 0
    updated = apt(tmp_path / "state", repository, "apt-get", "update")
    listed = apt(tmp_path / "state", repository, "apt-cache", "madison", "kepd").stdout
    loaded = apt(tmp_path / "state", repository, "apt-get", "download", "kepd=0.9.0-1~deb12")

    assert (updated.returncode, updated.stderr) == (0, "")
    assert [line.split("|")[1].strip() for line in listed.splitlines()] == ["0.10.0-1~deb12", "0.9.0-1~deb12"]
    assert loaded.returncode == 0, loaded.stderr
    assert (repository / "dists/trixie/InRelease").exists()


@pytest.mark.parametrize("touched", ["dists/bookworm/InRelease", "dists/bookworm/main/binary-amd64/Packages"])
def test_apt_refuses_what_was_changed_afterwards(tmp_path: Path, keys: Path, touched: str) -> None:
    repository = tmp_path / "apt"
    publish(repository, keys, package(tmp_path, "0.9.0"))
    path = repository / touched
    path.write_text(path.read_text().replace("kepd", "nepd"))
    if not touched.endswith("InRelease"):
        path.with_suffix(".gz").unlink()

    assert apt(tmp_path / "state", repository, "apt-get", "update", "-o", "APT::Update::Error-Mode=any").returncode != 0


def test_the_same_packages_and_key_give_the_same_bytes(tmp_path: Path, keys: Path) -> None:
    made = package(tmp_path, "0.9.0")
    for name in ("one", "two"):
        publish(tmp_path / name, keys, made)
    first, second = (
        [(tmp_path / name / "dists/bookworm" / one).read_bytes() for one in CONTENT] for name in ("one", "two")
    )

    assert first == second


def test_a_version_never_changes_and_a_package_of_no_release_is_refused(tmp_path: Path, keys: Path) -> None:
    repository = tmp_path / "apt"
    publish(repository, keys, package(tmp_path, "0.9.0"))
    changed = publish(repository, keys, package(tmp_path / "other", "0.9.0", text="Section: net\n"))
    nameless = tmp_path / "kepd_1.0_amd64.deb"
    nameless.touch()

    assert "is there with other content" in changed.stderr
    assert "its version names no release of Debian" in publish(repository, keys, nameless).stderr
    assert changed.returncode == 1
