# SPDX-License-Identifier: Apache-2.0
"""FX-11: what a release renders names its image by digest, and says what it was made of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.kustomize import render
from tests.host.process import ROOT

DIGEST, BASE_DIGEST = "ab" * 32, "cd" * 32
IMAGE = f"registry.example:5000/tools/kepd@sha256:{DIGEST}"
OVERLAYS = ["base", *(f"overlays/{path.name}" for path in sorted((ROOT / "deploy/overlays").iterdir()))]


def release(folder: Path, image: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "sbom.json").write_text("{}")
    command = [sys.executable, str(ROOT / "scripts/release.py"), image, "--out", str(folder / "out")]
    return subprocess.run(
        [*command, "--sbom", str(folder / "sbom.json"), *more], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_container_of_every_overlay_has_the_image_by_digest(tmp_path: Path, overlay: str) -> None:
    done = release(tmp_path, IMAGE)
    assert done.returncode == 0, done.stderr
    objects = render(tmp_path / "out/deploy" / overlay)
    (spec,) = [one["spec"]["template"]["spec"] for (kind, _), one in objects.items() if kind == "DaemonSet"]

    assert {one["image"] for one in (*spec["containers"], *spec["initContainers"])} == {IMAGE}


def test_provenance_names_commit_base_and_requirements(tmp_path: Path) -> None:
    release(tmp_path, IMAGE, "--base", f"docker.io/library/debian@sha256:{BASE_DIGEST}")
    told = json.loads((tmp_path / "out/provenance.json").read_text())
    materials = {one["name"]: one["digest"] for one in told["predicate"]["buildDefinition"]["resolvedDependencies"]}

    assert told["subject"] == [{"name": "registry.example:5000/tools/kepd", "digest": {"sha256": DIGEST}}]
    assert materials["docker.io/library/debian"] == {"sha256": BASE_DIGEST}
    assert len(materials["scripts/locks/runtime.lock"]["sha256"]) == 64
    assert (tmp_path / "out/kepd.spdx.json").exists()


def test_a_base_without_a_digest_is_said(tmp_path: Path) -> None:
    done = release(tmp_path, IMAGE)

    assert "the base is not named by digest" in done.stderr


@pytest.mark.parametrize("image", ["kepd:0.1.0", "registry.example/kepd", f"kepd@sha256:{DIGEST[:-1]}"])
def test_an_image_without_a_digest_is_refused(tmp_path: Path, image: str) -> None:
    done = release(tmp_path, image)

    assert done.returncode == 1
    assert "is not named by digest" in done.stderr
    assert not (tmp_path / "out").exists()
