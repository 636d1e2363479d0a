# SPDX-License-Identifier: Apache-2.0
"""Configurations that cannot work in a pod, said before anything starts."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.config.document import Configuration, Kubernetes, Proxy
from agent.config.sections.services import Services
from agent.host.plane_checks import in_pod_faults
from tests.host.process import HEAD, PROGRAMS

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
FROM_CLUSTER = Services(enabled=True, source="kubernetes")
NO_SERVICES = Services(enabled=False, source="kubernetes")


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        (Configuration(proxy=Proxy(enabled=True), services=NO_SERVICES), ["proxy.enabled"]),
        (Configuration(services=FROM_CLUSTER), ["kubernetes.servers"]),
        (Configuration(services=FROM_CLUSTER, kubernetes=Kubernetes(servers=("https://10.0.0.1:6443",))), []),
        (Configuration(services=FROM_CLUSTER, kubernetes=Kubernetes(kubeconfig="/etc/kepd/kubeconfig")), []),
        (Configuration(services=Services(enabled=True, source="manifests")), []),
        (Configuration(services=NO_SERVICES), []),
    ],
)
def test_what_cannot_work_in_a_pod_is_named_there_and_only_there(
    configuration: Configuration, expected: list[str]
) -> None:
    """DS-01, DS-04: nor does anything of this hold for a service of the node."""
    assert [one.path for one in in_pod_faults(configuration, IN_POD)] == expected
    assert list(in_pod_faults(configuration, {})) == []


@pytest.mark.parametrize(("environment", "code"), [(IN_POD, 78), ({}, 0)])
def test_a_proxy_in_a_pod_is_refused_with_the_way_out(
    tmp_path: Path, environment: Mapping[str, str], code: int
) -> None:
    """DS-01: the exit code tells a service manager that trying again is of no use."""
    config = tmp_path / "config.yaml"
    config.write_text(HEAD + "proxy: {enabled: true}\nservices: {enabled: false}\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    command = [str(PROGRAMS / "kepd"), "config", "check", "--config", str(config)]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == code, done.stderr
    assert ("kepd-cri.service" in done.stdout + done.stderr) == bool(environment)
