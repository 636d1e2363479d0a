# SPDX-License-Identifier: Apache-2.0
"""`deploy/`: every overlay renders, has only fields that exist, and starts a kepd that takes its configuration."""

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from agent import __version__
from agent.host.main import main
from agent.services.run.cluster.startup_taint import EFFECT, STARTUP_TAINT
from tests.deploy.kustomize import Rendered, render
from tests.deploy.manifest_shape import Container, DaemonSet, PodSpec, Probe, checked_object
from tests.host.process import ROOT

DEPLOY = ROOT / "deploy"
OVERLAYS = ["base", *sorted(f"overlays/{path.name}" for path in (DEPLOY / "overlays").iterdir())]
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
KINDS = {"ConfigMap", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
SERVERS = '["https://10.0.0.10:6443", "https://10.0.0.11:6443"]'


def daemon_set(overlay: str) -> DaemonSet:
    made: DaemonSet = checked_object(render(DEPLOY / overlay)["DaemonSet", "kepd"])
    return made


def pod(overlay: str) -> PodSpec:
    return daemon_set(overlay).spec.template.spec


def main_container(overlay: str) -> Container:
    container, *beside = pod(overlay).containers
    assert [one.name for one in beside] == (["dns"] if overlay == "overlays/dns" else [])
    return container


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_field_is_one_that_an_api_server_knows(overlay: str) -> None:
    """DS-12: a mistyped field is dropped silently by some clients and means that a protection is not there."""
    objects = render(DEPLOY / overlay)
    for one in objects.values():
        checked_object(one)

    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} if overlay == "overlays/taint" else set()
    assert {kind for kind, _ in objects} == KINDS | policy


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="there is no kubectl here; our own renderer is tested alone"
)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_the_same_as_we(overlay: str) -> None:
    """DS-12: without any network."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / overlay)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    theirs: Rendered = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}

    assert render(DEPLOY / overlay) == theirs


def start_up(overlay: str, container: Container, **more: str) -> Result:
    """`kepd config check` with the flags and the environment of a container."""
    outside = dict.fromkeys(key for key in os.environ if key.startswith(("KEPD_", "KUBERNETES_")))
    data: dict[str, str] = render(DEPLOY / overlay)["ConfigMap", "kepd"]["data"]
    environment = outside | IN_POD | {"KEPD_NODE__NAME": "n1"} | data | more
    return CliRunner().invoke(main, ["config", "check", *container.args[1:]], env=environment)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kepd_takes_the_configuration_of_its_containers(overlay: str) -> None:
    """DS-04: once it is told of API servers; until then it says so, for a pod is given a ClusterIP only."""
    spec = pod(overlay)
    for container in (*spec.init_containers, main_container(overlay)):
        filled = start_up(overlay, container, KEPD_KUBERNETES__SERVERS=SERVERS)
        empty = start_up(overlay, container, KEPD_KUBERNETES__SERVERS="[]")

        assert filled.exit_code == 0, filled.output
        assert (empty.exit_code, "kubernetes.servers" in empty.output) == (78, True)


def test_the_cluster_of_kind_is_filled_in() -> None:
    data = render(DEPLOY / "overlays/kind")["ConfigMap", "kepd"]["data"]

    assert json.loads(data["KEPD_KUBERNETES__SERVERS"]) == ["https://kepd-control-plane:6443"]
    assert main_container("overlays/kind").image == "localhost/kepd:dev"


def test_the_image_has_the_version_of_the_program() -> None:
    spec = pod("base")

    assert {one.image for one in (*spec.init_containers, *spec.containers)} == {f"kepd:{__version__}"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_every_node_before_others_and_one_at_a_time(overlay: str) -> None:
    """DS-04, DS-05: two writers of one table would take turns in undoing each other."""
    spec, update = pod(overlay), daemon_set(overlay).spec.update_strategy.rolling_update

    assert (spec.host_network, spec.dns_policy, spec.enable_service_links) == (True, "Default", False)
    assert spec.priority_class_name == "system-node-critical"
    assert [one.operator for one in spec.tolerations] == ["Exists"]
    assert spec.node_selector == {"kubernetes.io/os": "linux"}
    assert (update.max_unavailable, update.max_surge) == ("10%", 0)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_daemon_has_one_capability_and_a_helper_does_the_rest(overlay: str) -> None:
    """DS-07, DS-11."""
    spec, container = pod(overlay), main_container(overlay)
    security = container.security_context
    (helper,) = spec.init_containers
    assert security.capabilities is not None

    assert spec.security_context.seccomp_profile.type == "RuntimeDefault"
    assert (security.privileged, security.allow_privilege_escalation) == (False, False)
    assert security.read_only_root_filesystem
    assert security.capabilities.drop == ["ALL"]
    assert security.capabilities.add == ["NET_ADMIN"] + (["NET_RAW"] if overlay == "overlays/iptables" else [])
    assert (helper.args[0], helper.security_context.privileged) == ("node-init", True)
    assert container.resources.limits == {"memory": "384Mi"}
    assert container.resources.requests == {"cpu": "50m", "memory": "128Mi"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_directories_are_mounted_and_files_only_where_they_are_locks(overlay: str) -> None:
    """DS-06: a mounted socket goes stale when its owner makes it anew."""
    spec, container = pod(overlay), main_container(overlay)
    kinds = {one.host_path.path: one.host_path.type for one in spec.volumes}
    files = {path for path, kind in kinds.items() if "File" in kind}
    writable = {one.mount_path for one in container.volume_mounts if not one.read_only}
    has_images = "images" in container.args[-1]

    assert files == ({"/run/xtables.lock"} if overlay == "overlays/iptables" else set())
    assert ("/run/containerd" in kinds) == has_images
    assert ("/run/kepd-dns" in writable) == (overlay == "overlays/dns")
    assert writable - {"/run/containerd", "/run/xtables.lock", "/run/kepd-dns"} == {
        "/run/kepd",
        "/var/lib/kepd",
        "/run/kepd-locks",
    }
    assert sorted(one.name for one in container.volume_mounts) == sorted(one.name for one in spec.volumes)


def probe_figures(probe: Probe | None) -> tuple[Any, ...]:
    assert probe is not None
    return probe.http_get.path, probe.period_seconds, probe.failure_threshold


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_the_daemon_itself_on_loopback(overlay: str) -> None:
    """DS-09: at the address that is the default of `api.httpAddress`."""
    container = main_container(overlay)
    probes = (container.startup_probe, container.liveness_probe, container.readiness_probe)

    assert {(one.http_get.host, one.http_get.port) for one in probes if one} == {("127.0.0.1", 10241)}
    assert probe_figures(container.startup_probe) == ("/readyz", 3, 60)
    assert probe_figures(container.liveness_probe) == ("/livez", 10, 3)
    assert probe_figures(container.readiness_probe)[0] == "/readyz"


def test_who_may_patch_nodes_is_held_to_its_own() -> None:
    """DS-03: the role cannot say so. What the expressions mean was tried with an interpreter of CEL, not here."""
    objects = render(DEPLOY / "overlays/taint")
    policy = objects["ValidatingAdmissionPolicy", "kepd-own-node"]["spec"]
    binding = objects["ValidatingAdmissionPolicyBinding", "kepd-own-node"]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    (account,) = objects["ClusterRoleBinding", "kepd-taint"]["subjects"]
    (condition,) = policy["matchConditions"]

    assert (binding["policyName"], binding["validationActions"]) == ("kepd-own-node", ["Deny"])
    assert (policy["failurePolicy"], rule["resources"], rule["operations"]) == ("Fail", ["nodes"], ["UPDATE"])
    assert f"'system:serviceaccount:{account['namespace']}:{account['name']}'" in condition["expression"]
    assert f"'{STARTUP_TAINT}'" in policy["validations"][1]["expression"]
    assert f"'{STARTUP_TAINT}' || taint.effect == '{EFFECT}'" in policy["validations"][2]["expression"]


# Fields of a Node that a request to change it can change; the API server keeps the others, or writes them itself.
CHANGEABLE = {
    "metadata": ("labels", "annotations", "finalizers", "ownerReferences"),
    "spec": ("podCIDR", "podCIDRs", "providerID", "unschedulable", "taints", "configSource", "externalID"),
}


def test_of_a_node_all_is_compared_but_its_taints() -> None:
    """FX-6: an ownerReference alone lets the garbage collector delete a node."""
    policy = render(DEPLOY / "overlays/taint")["ValidatingAdmissionPolicy", "kepd-own-node"]["spec"]
    expressions = {" ".join(one["expression"].split()) for one in policy["validations"]}
    paths = [f"{part}.{name}" for part, names in CHANGEABLE.items() for name in names if name != "taints"]
    equal = {
        f"has(object.{path}) == has(oldObject.{path}) && (!has(object.{path}) || object.{path} == oldObject.{path})"
        for path in paths
    }

    assert equal <= expressions
    assert len(expressions) == len(equal) + 3, "beside them the name of the node, and twice the taints"
