# SPDX-License-Identifier: Apache-2.0
"""The fields of a container as a manifest gives them, and what they refer to."""

from __future__ import annotations

import msgspec

Amount = str | int | float
Port = int | str


class Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Common to all."""


class NamedReference(Fields, frozen=True):
    name: str = ""


class NamedValue(Fields, frozen=True):
    name: str = ""
    value: str = ""


class KeyToPath(Fields, frozen=True):
    key: str = ""
    path: str = ""
    mode: int | None = None


class KeyReference(Fields, frozen=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldReference(Fields, frozen=True):
    api_version: str = "v1"
    field_path: str = ""


class ResourceReference(Fields, frozen=True):
    container_name: str = ""
    resource: str = ""
    divisor: Amount = "0"


class FileReference(Fields, frozen=True):
    """A variable in a file of a volume (KEP-3721)."""

    volume_name: str = ""
    path: str = ""
    key: str = ""
    optional: bool = False


class EnvSource(Fields, frozen=True):
    field_ref: FieldReference | None = None
    resource_field_ref: ResourceReference | None = None
    config_map_key_ref: KeyReference | None = None
    secret_key_ref: KeyReference | None = None
    file_key_ref: FileReference | None = None


class Env(Fields, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class SourceReference(Fields, frozen=True):
    name: str = ""
    optional: bool = False


class EnvFrom(Fields, frozen=True):
    prefix: str = ""
    config_map_ref: SourceReference | None = None
    secret_ref: SourceReference | None = None


class ContainerPort(Fields, frozen=True):
    name: str = ""
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Exec(Fields, frozen=True):
    command: tuple[str, ...] = ()


class HttpGet(Fields, frozen=True):
    path: str = ""
    port: Port = 0
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[NamedValue, ...] = ()

    @property
    def whole_path(self) -> str:
        """As it stands in a request, where each begins with a slash."""
        return self.path if self.path.startswith("/") else f"/{self.path}"


class TcpSocket(Fields, frozen=True):
    port: Port = 0
    host: str = ""


class GrpcCheck(Fields, frozen=True):
    port: Port = 0
    service: str = ""


class Sleep(Fields, frozen=True):
    seconds: int = 0


class Hook(Fields, frozen=True):
    """What is done after a start or before a stop; exactly one of these."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    sleep: Sleep | None = None

    @property
    def type(self) -> str:
        return next((name for name in ("exec", "http_get", "tcp_socket", "sleep") if getattr(self, name)), "")


class Lifecycle(Fields, frozen=True):
    post_start: Hook | None = None
    pre_stop: Hook | None = None
    stop_signal: str = ""


class Probe(Fields, frozen=True):
    """A question asked again and again; zero reads as the default."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    grpc: GrpcCheck | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 0
    timeout_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None

    @property
    def type(self) -> str:
        return next((name for name in ("exec", "http_get", "tcp_socket", "grpc") if getattr(self, name)), "")

    @property
    def period_s(self) -> int:
        return self.period_seconds or 10

    @property
    def timeout_s(self) -> int:
        return self.timeout_seconds or 1

    @property
    def successes(self) -> int:
        return self.success_threshold or 1

    @property
    def failures(self) -> int:
        return self.failure_threshold or 3


class ClaimUse(Fields, frozen=True):
    """A claim of the pod whose devices a container gets: all, or those of one request."""

    name: str = ""
    request: str = ""


class Resources(Fields, frozen=True):
    limits: dict[str, Amount] = {}
    requests: dict[str, Amount] = {}
    claims: tuple[ClaimUse, ...] = ()


class ExitCodes(Fields, frozen=True):
    operator: str = ""
    values: tuple[int, ...] = ()


class RestartRule(Fields, frozen=True):
    """What an exit with certain codes leads to (KEP-5307)."""

    action: str = ""
    exit_codes: ExitCodes | None = None


class ResizePolicy(Fields, frozen=True):
    resource_name: str = ""
    restart_policy: str = ""


class VolumeMount(Fields, frozen=True):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    recursive_read_only: str = ""
    mount_propagation: str = "None"


class VolumeDevice(Fields, frozen=True):
    name: str = ""
    device_path: str = ""


class Capabilities(Fields, frozen=True):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class Profile(Fields, frozen=True):
    type: str = ""
    localhost_profile: str = ""


class SELinux(Fields, frozen=True):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class SecurityContext(Fields, frozen=True):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool = False
    read_only_root_filesystem: bool = False
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities | None = None
    proc_mount: str = ""
    seccomp_profile: Profile | None = None
    app_armor_profile: Profile | None = None
    se_linux_options: SELinux | None = None


class Container(Fields, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    env: tuple[Env, ...] = ()
    resources: Resources = Resources()
    resize_policy: tuple[ResizePolicy, ...] = ()
    restart_policy: str = ""
    restart_policy_rules: tuple[RestartRule, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    image_pull_policy: str = ""
    security_context: SecurityContext | None = None
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False

    @property
    def is_sidecar(self) -> bool:
        """Only of an init container."""
        return self.restart_policy == "Always"

    @property
    def post_start(self) -> Hook | None:
        return self.lifecycle.post_start if self.lifecycle is not None else None

    @property
    def pre_stop(self) -> Hook | None:
        return self.lifecycle.pre_stop if self.lifecycle is not None else None
