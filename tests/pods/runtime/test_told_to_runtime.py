# SPDX-License-Identifier: Apache-2.0
"""What the runtime is told about a pod: names, labels, namespaces, ports, users, profiles (LBL, NET, SEC)."""

import dataclasses
import json
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.sections.pods import Pods
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.runtime.cri_config import container_config, sandbox_config
from agent.pods.runtime.cri_security import MASKED, READ_ONLY, Made, NodeShape
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.observed import instance_of, left_container
from agent.pods.settings import PodNodeFacts, PodSettings
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.pods.pods import container, make_pod

PODS = Pods(log_directory="/logs")
SETTINGS = PodSettings(pods=PODS, node="n", instance="me", seccomp_root="/state/seccomp")
NODE = NodeShape(settings=SETTINGS)


def with_pods(**keys: Any) -> NodeShape:
    return NodeShape(settings=replace(SETTINGS, pods=dataclasses.replace(PODS, **keys)))


def made_of(pod: PodSpec, name: str = "app", node: NodeShape = NODE, **made: Any) -> pb.ContainerConfig:
    return container_config(pod, pod.by_name[name], Made(**{"image_ref": "sha256:1", **made}), node)


def security(pod_context: Any = None, image: dict[str, Any] | None = None, node: NodeShape = NODE, **own: Any) -> Any:
    given = {"securityContext": own} if own else {}
    spec = {"securityContext": pod_context} if pod_context is not None else {}
    return made_of(make_pod([container("app", **given)], **spec), node=node, **(image or {})).linux.security_context


class TestNames:
    """LBL: crictl, log shippers and a later kepd find everything by these."""

    POD = dataclasses.replace(
        make_pod([container("app", image="i:1")]), labels=(("app", "web"),), annotations=(("note", "x"),)
    )

    def test_a_sandbox_has_the_pods_labels_and_whose_it_is(self) -> None:
        """LBL-01, LBL-05, IDN-03."""
        config = sandbox_config(self.POD, NODE, attempt=2, seen="2026-01-01T00:00:00.000000000Z")

        assert (config.metadata.name, config.metadata.namespace, config.metadata.uid, config.metadata.attempt) == (
            "web", "default", "u1", 2,
        )  # fmt: skip
        assert dict(config.labels) == {
            "app": "web", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": "u1",
        }  # fmt: skip
        assert dict(config.annotations) == {
            "note": "x", "kubernetes.io/config.hash": "u1", "kubernetes.io/config.source": "file",
            "kubernetes.io/config.seen": "2026-01-01T00:00:00.000000000Z", "kepd.dev/instance": "me",
            "kepd.dev/manifest-hash": "h", "kepd.dev/manifest-file": "",
            "kepd.dev/control-group": "/kepd/besteffort/podu1",
        }  # fmt: skip
        assert config.log_directory == "/logs/default_web_u1"

    def test_a_container_has_labels_of_its_own_only(self) -> None:
        """LBL-02, LBL-04."""
        config = made_of(self.POD, attempt=3)

        assert dict(config.labels) == {
            "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u1",
            "io.kubernetes.container.name": "app",
        }  # fmt: skip
        assert (config.metadata.name, config.metadata.attempt, config.log_path) == ("app", 3, "app/3.log")
        assert (config.image.image, config.image.user_specified_image) == ("sha256:1", "i:1")

    def test_a_container_carries_what_a_later_kepd_has_to_know(self) -> None:
        """LBL-03."""
        ports = [{"containerPort": 80, "name": "http"}, {"containerPort": 53, "protocol": "UDP", "hostPort": 53}]
        app = container("app", ports=ports, lifecycle={"preStop": {"exec": {"command": ["bye"]}}})
        notes = made_of(make_pod([app], terminationGracePeriodSeconds=7), attempt=1).annotations

        assert json.loads(notes.pop("io.kubernetes.container.ports")) == [
            {"containerPort": 80, "name": "http", "protocol": "TCP"},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP"},
        ]
        assert json.loads(notes.pop("io.kubernetes.container.preStopHandler")) == {"exec": {"command": ["bye"]}}
        assert int(notes.pop("io.kubernetes.container.hash"), 16) > 0
        assert dict(notes) == {
            "io.kubernetes.container.restartCount": "1",
            "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
            "io.kubernetes.container.terminationMessagePolicy": "File",
            "io.kubernetes.pod.terminationGracePeriod": "7",
        }

    def test_messages_name_a_pod_with_its_uid(self) -> None:
        """IDN-04."""
        assert self.POD.full_name == "web_default(u1)"

    def test_the_marks_of_whoever_runs_a_pod_change_nothing(self) -> None:
        """IDN-03: a manifest that came out of a cluster has them."""
        text = "apiVersion: v1\nkind: Pod\nmetadata: {name: w, annotations: {%s}}\n"
        text += "spec: {containers: [{name: a, image: i}]}\n"
        plain, marked = (
            parse_objects("f", (text % notes).encode(), NodeIdentity("n", has_name_suffix=True)).pods[0]
            for notes in ("", "kubernetes.io/config.source: api, kubernetes.io/config.mirror: x")
        )

        assert (marked.uid, marked.hash) == (plain.uid, plain.hash)

    def test_every_signal_of_a_manifest_is_one_of_the_runtime(self) -> None:
        """TRM-24: real-time signals are written otherwise there."""
        from agent.pods.manifest.validation.handlers import SIGNALS
        from agent.pods.runtime.names import signal_name, signal_word

        told = {
            pb.Signal.Name(made_of(make_pod([container("app", lifecycle={"stopSignal": signal})])).stop_signal)
            for signal in SIGNALS
        }

        assert len(SIGNALS) == 65
        assert {signal_name(word) for word in told} == SIGNALS
        assert signal_word("SIGRTMIN+3") == "SIGRTMINPLUS3"

    def test_simple_fields_pass_through(self) -> None:
        """LBL-08."""
        config = made_of(
            make_pod([container("app", stdin=True, stdinOnce=True, tty=True, workingDir="/w")]),
            command=["c"], args=["a"], environment=[("A", "b")],
        )  # fmt: skip

        assert (config.stdin, config.stdin_once, config.tty, config.working_dir) == (True, True, True, "/w")
        assert (list(config.command), list(config.args)) == (["c"], ["a"])
        assert [(one.key, one.value) for one in config.envs] == [("A", b"b")]


class TestNetwork:
    @pytest.mark.parametrize(
        ("spec", "namespaces"),
        [
            ({}, (pb.POD, pb.CONTAINER, pb.POD)),
            ({"hostNetwork": True}, (pb.NODE, pb.CONTAINER, pb.POD)),
            ({"hostPID": True, "hostIPC": True}, (pb.POD, pb.NODE, pb.NODE)),
            ({"shareProcessNamespace": True}, (pb.POD, pb.POD, pb.POD)),
        ],
    )
    def test_namespaces_are_always_told(self, spec: dict[str, Any], namespaces: tuple[int, ...]) -> None:
        """NET-04, SEC-06: of the sandbox and of every container alike."""
        pod = make_pod(**spec)
        for context in (sandbox_config(pod, NODE).linux.security_context, made_of(pod).linux.security_context):
            options = context.namespace_options
            assert (options.network, options.pid, options.ipc) == namespaces

    def test_settings_of_the_kernel_have_dots(self) -> None:
        """NET-04."""
        pod = make_pod(securityContext={"sysctls": [{"name": "net/ipv4/ip_forward", "value": "1"}]})

        assert dict(sandbox_config(pod, NODE).linux.sysctls) == {"net.ipv4.ip_forward": "1"}

    @pytest.mark.parametrize(
        ("copies_kubelet", "ports"), [(False, [(80, 8080), (53, 53), (9, 0)]), (True, [(53, 53), (9, 0)])]
    )
    def test_ports_of_mains_and_sidecars_are_mapped(self, copies_kubelet: bool, ports: list[tuple[int, int]]) -> None:
        """LBL-07, Q-PORTS."""
        side = container("s", restartPolicy="Always", ports=[{"containerPort": 80, "hostPort": 8080}])
        app = container(
            "app",
            ports=[
                {"containerPort": 53, "hostPort": 53, "hostIP": "192.0.2.1", "protocol": "UDP"},
                {"containerPort": 9},
            ],
        )
        init = container("i", ports=[{"containerPort": 7, "hostPort": 7}])
        pod = make_pod([app], [side, init])
        told = sandbox_config(pod, with_pods(profile="kubelet" if copies_kubelet else "kepd")).port_mappings

        assert [(one.container_port, one.host_port) for one in told] == ports
        assert (told[-2].host_ip, told[-2].protocol) == ("192.0.2.1", pb.UDP)
        own = sandbox_config(make_pod([app], hostNetwork=True), NODE).port_mappings
        assert [(one.container_port, one.host_port) for one in own] == [(53, 53), (9, 9)]


class TestUsers:
    @pytest.mark.parametrize(
        ("pod_context", "own", "image", "user"),
        [
            (None, {}, {"image_uid": 7}, 7),
            (None, {}, {}, 0),
            ({"runAsUser": 5}, {}, {"image_uid": 7}, 5),
            ({"runAsUser": 5}, {"runAsUser": 6}, {"image_user": "www"}, 6),
        ],
    )
    def test_the_containers_word_counts_then_the_pods_then_the_images(
        self, pod_context: Any, own: dict[str, Any], image: dict[str, Any], user: int
    ) -> None:
        """SEC-01."""
        context = security(pod_context, image, **own)

        assert (context.run_as_user.value, context.run_as_username) == (user, "")

    def test_a_name_stays_a_name(self) -> None:
        context = security(None, {"image_user": "www"}, runAsGroup=9)

        assert (context.HasField("run_as_user"), context.run_as_username, context.run_as_group.value) == (
            False, "www", 9,
        )  # fmt: skip

    def test_groups_of_volumes_come_first(self) -> None:
        """SEC-02."""
        given = {"fsGroup": 3, "supplementalGroups": [1, 2], "supplementalGroupsPolicy": "Strict"}
        context = security(given)

        assert list(context.supplemental_groups) == [3, 1, 2]
        assert context.supplemental_groups_policy == pb.Strict

    @pytest.mark.parametrize(
        ("own", "image", "text"),
        [
            ({}, {}, "container has runAsNonRoot and image will run as root"),
            ({}, {"image_uid": 0}, "container has runAsNonRoot and image will run as root"),
            ({"runAsUser": 0}, {"image_uid": 5}, "container's runAsUser breaks non-root policy"),
            ({}, {"image_user": "www"},
             "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root"),
            ({}, {"image_uid": 5}, ""),
            ({"runAsUser": 5}, {}, ""),
            ({"runAsNonRoot": False}, {}, ""),
        ],
    )  # fmt: skip
    def test_root_is_refused_where_nobody_may_be_root(
        self, own: dict[str, Any], image: dict[str, Any], text: str
    ) -> None:
        """SEC-04."""
        if not text:
            security({"runAsNonRoot": True}, image, **own)
            return
        with pytest.raises(ConfigProblem) as told:
            security({"runAsNonRoot": True}, image, **own)

        whose = '(pod: "web_default(u1)", container: app)'
        assert (told.value.reason, str(told.value)) == ("CreateContainerConfigError", f"{text} {whose}")


class TestProfiles:
    @pytest.mark.parametrize(
        ("pod_context", "own", "default", "kind", "place"),
        [
            (None, {}, "Unconfined", "Unconfined", ""),
            (None, {}, "RuntimeDefault", "RuntimeDefault", ""),
            ({"seccompProfile": {"type": "RuntimeDefault"}}, {}, "Unconfined", "RuntimeDefault", ""),
            (
                {"seccompProfile": {"type": "RuntimeDefault"}},
                {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}},
                "Unconfined", "Localhost", "/state/seccomp/a/b.json",
            ),
        ],
    )  # fmt: skip
    def test_system_calls(self, pod_context: Any, own: dict[str, Any], default: str, kind: str, place: str) -> None:
        """SEC-03."""
        profile = security(pod_context, None, with_pods(default_seccomp=default), **own).seccomp

        assert (pb.SecurityProfile.ProfileType.Name(profile.profile_type), profile.localhost_ref) == (kind, place)

    def test_a_sandbox_has_the_runtimes_profile(self) -> None:
        """SEC-03, SEC-06."""
        pod = make_pod(["app", container("root", securityContext={"privileged": True})])
        context = sandbox_config(pod, NODE).linux.security_context

        assert (context.seccomp.profile_type, context.privileged) == (pb.SecurityProfile.RuntimeDefault, True)
        assert not sandbox_config(make_pod(), NODE).linux.security_context.privileged

    def test_armour_labels_and_rights(self) -> None:
        """SEC-01."""
        context = security(
            {"appArmorProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"level": "s0"}},
            capabilities={"add": ["NET_ADMIN"], "drop": ["ALL"]},
            appArmorProfile={"type": "Localhost", "localhostProfile": "mine"},
            seLinuxOptions={"type": "t"},
            readOnlyRootFilesystem=True,
            allowPrivilegeEscalation=False,
        )

        assert (context.apparmor.profile_type, context.apparmor.localhost_ref) == (pb.SecurityProfile.Localhost, "mine")
        assert context.apparmor_profile == "localhost/mine"
        assert (context.selinux_options.type, context.selinux_options.level) == ("t", "")
        assert list(context.capabilities.add_capabilities) == ["NET_ADMIN"]
        assert list(context.capabilities.drop_capabilities) == ["ALL"]
        assert (context.readonly_rootfs, context.no_new_privs) == (True, True)
        assert not security().no_new_privs

    def test_what_of_the_kernel_is_hidden(self) -> None:
        """SEC-05."""
        heat = "/sys/devices/system/cpu/cpu0/thermal_throttle"
        context = security(node=NodeShape(settings=replace(SETTINGS, facts=PodNodeFacts(masked=(heat,)))))

        assert list(context.masked_paths) == [*MASKED, heat]
        assert list(context.readonly_paths) == list(READ_ONLY)
        assert {"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/interrupts"} <= set(context.masked_paths)
        open_context = security(procMount="Unmasked")
        assert (list(open_context.masked_paths), list(open_context.readonly_paths)) == ([], [])


def test_what_the_runtime_class_takes_is_told_apart() -> None:
    pod = make_pod([container("app", resources={"limits": {"cpu": "1", "memory": "1Gi"}})],
                   overhead={"cpu": "250m", "memory": "64Mi"})  # fmt: skip
    linux = sandbox_config(pod, NODE).linux

    assert (linux.resources.cpu_quota, linux.resources.memory_limit_in_bytes) == (100_000, 1 << 30)
    assert (linux.overhead.cpu_quota, linux.overhead.cpu_shares) == (25_000, 256)
    assert linux.overhead.memory_limit_in_bytes == 64 << 20


def test_what_a_container_does_not_limit_the_pod_does() -> None:
    """RES-06."""
    pod = make_pod(["app", container("own", resources={"limits": {"memory": "1Mi"}})],
                   resources={"limits": {"cpu": "1", "memory": "1Gi"}})  # fmt: skip
    app, own = (made_of(pod, name).linux.resources for name in ("app", "own"))

    assert (app.cpu_quota, app.cpu_shares, app.memory_limit_in_bytes) == (100_000, 1024, 1 << 30)
    assert (own.cpu_quota, own.memory_limit_in_bytes) == (100_000, 1 << 20)


def added(pod: PodSpec, **fields: Any) -> pb.ContainerConfig:
    one = ContainerSpec(ContainerKind.EPHEMERAL, container("look", **fields))
    return container_config(pod, one, Made(image_ref="sha256:1", target_id="c1"), NODE)


def test_an_ephemeral_container_sees_the_processes_of_its_target() -> None:
    """TRM-27: where the pod shares processes, or has those of the node, that stays so."""
    found = [
        added(make_pod(**spec)).linux.security_context.namespace_options
        for spec in ({}, {"shareProcessNamespace": True}, {"hostPID": True})
    ]

    assert [(one.pid, one.target_id) for one in found] == [(pb.TARGET, "c1"), (pb.POD, ""), (pb.NODE, "")]
    assert {(one.network, one.ipc) for one in found} == {(pb.POD, pb.POD)}


def test_an_ephemeral_container_carries_a_mark_by_which_it_is_known_again() -> None:
    """TRM-27: no manifest has it."""
    config = added(make_pod(), stdin=True, tty=True)
    listed = pb.Container(id="c2", state=pb.CONTAINER_RUNNING, labels=config.labels, annotations=config.annotations)

    assert instance_of(listed, 0.0).is_ephemeral
    assert not instance_of(pb.Container(id="c3", annotations=made_of(make_pod()).annotations), 0.0).is_ephemeral
    assert left_container(instance_of(listed, 0.0)).fields.tty
