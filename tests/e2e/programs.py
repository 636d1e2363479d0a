# SPDX-License-Identifier: Apache-2.0
"""The programs of Kubernetes that a comparison needs. None of them is part of this project: variables name them."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.images import Image

VARIABLES = {
    "suite": ("KEPD_E2E", "the suite, e2e.test"),
    "kubelet": ("KEPD_KUBELET", "kubelet"),
    "server": ("KEPD_APISERVER", "kube-apiserver"),
    "controllers": ("KEPD_CONTROLLERS", "kube-controller-manager"),
    "scheduler": ("KEPD_SCHEDULER", "kube-scheduler"),
    "proxy": ("KEPD_KUBE_PROXY", "kube-proxy, for the run without kepd"),
    "kubectl": ("KEPD_KUBECTL", "kubectl"),
    "etcd": ("KEPD_ETCD", "etcd"),
}
IMAGES = ("KEPD_E2E_IMAGES", "directory of archives (docker save, OCI) with the images that the suite's pods have")


class MissingError(Exception):
    """What cannot run here, and which variables would change that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Full paths."""

    suite: str
    kubelet: str
    server: str
    controllers: str
    scheduler: str
    proxy: str
    kubectl: str
    etcd: str
    images: tuple[Path, ...]

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ, *without: str) -> "Programs":
        """All of them, or everything that is missing at once. `without`: parts that this run does not start."""
        found = {part: shutil.which(environment.get(name, "")) or "" for part, (name, _) in VARIABLES.items()}
        lines = [
            f"{name}={environment.get(name, '')!r}: expected the path of {what}"
            for part, (name, what) in VARIABLES.items()
            if not found[part] and part not in without
        ]
        folder = Path(environment.get(IMAGES[0]) or "/nonexistent")
        images = tuple(sorted(folder.glob("*.tar")))
        if not images and "images" not in without:
            lines.append(f"{IMAGES[0]}={environment.get(IMAGES[0], '')!r}: expected a {IMAGES[1]}")
        if lines:
            raise MissingError("\n".join(lines))
        return cls(**found, images=images)

    def control_plane(self) -> dict[str, Image]:
        """Images of what kubeadm starts in pods, by the last part of its names for them."""
        return {
            "kube-apiserver": Image(name="server", programs=[self.server]),
            "kube-controller-manager": Image(name="controllers", programs=[self.controllers]),
            "kube-scheduler": Image(name="scheduler", programs=[self.scheduler]),
            "etcd": Image(name="etcd", programs=[self.etcd]),
        }
