# SPDX-License-Identifier: Apache-2.0
"""The configuration document as typed sections: one field per key, with its kind, default and text for users.

A default works on a bare node; where it depends on the host it is empty here and `derived` says what fills it
(effective.py does). A reload applies a `key`; one declared with `restart` waits for a new process.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.config.keys import Words, key, restart
from agent.config.kinds import (
    ADDRESS,
    BOOL,
    DNS_NAME,
    DURATION,
    ENDPOINT,
    GROUP,
    IP,
    MAYBE_PATH,
    PATH,
    RELATIVE_NAME,
    TEXT,
    choice,
    duration,
    integer,
    list_of,
    map_of,
    number,
)
from agent.config.sections.devices import Devices
from agent.config.sections.dns import Dns
from agent.config.sections.images import Images
from agent.config.sections.pods import Pods
from agent.config.sections.policies import Policies
from agent.config.sections.services import Services
from agent.config.sections.telemetry import Telemetry

API_VERSION = "config.kepd.dev/v1beta1"
# Still read, with a warning; each has the same keys.
FORMER_VERSIONS = ("config.kepd.dev/v1alpha1",)
KIND = "KepdConfiguration"
# In the order in which they are put together.
PLANES = ("images", "devices", "policies", "pods", "proxy", "services", "dns")
# What runs only beside another plane.
COMES_WITH = {"policies": "pods"}
# Keys that switch a plane on, the first by itself, where that is not its `enabled`.
SWITCHES = {"devices": ("devices.manager.enabled", "devices.driver.enabled", "devices.plugins.enabled")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection:
    name: str = restart(DNS_NAME, "", "Name of this node.", "the host name, in lower case")
    state_directory: str = restart(
        PATH, "", "Directory for data that must survive a reboot.", "$STATE_DIRECTORY, else /var/lib/kepd"
    )
    run_directory: str = restart(PATH, "", "Directory for sockets and locks.", "$RUNTIME_DIRECTORY, else /run/kepd")
    addresses: Words = key(
        list_of(IP, "IP addresses"),
        (),
        "Addresses of the node; without a cluster, by default those of the default route.",
    )
    labels: Mapping[str, str] = key(map_of(TEXT, "of labels"), {}, "Labels of the node, such as its zone.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSection:
    endpoint: str = restart(ENDPOINT, "unix:///run/containerd/containerd.sock", "Socket of the CRI runtime service.")
    image_endpoint: str = restart(ENDPOINT, "", "Socket of the CRI image service.", "runtime.endpoint")
    containerd_namespace: str = restart(RELATIVE_NAME, "k8s.io", "containerd namespace that the CRI plugin uses.")
    request_timeout: float = key(duration(0.1), 120.0, "Timeout of a CRI call, unless the method has its own.")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTls:
    """With both files `api.httpAddress` serves HTTPS."""

    cert_file: str = restart(MAYBE_PATH, "", "Certificate of the HTTP port, in PEM; read again when it changes.")
    key_file: str = restart(MAYBE_PATH, "", "Its private key, without a password.")
    client_ca_file: str = restart(
        MAYBE_PATH,
        "",
        "Authorities of clients; all pages but /livez and /readyz then need a certificate of theirs.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Kubernetes' API for what this node has, for kubectl and other clients; `kepctl kubeconfig` gives the way in."""

    address: str = restart(ADDRESS, "", "Address of the API, over TLS, such as 127.0.0.1:10246; empty = off.")
    client_ca_file: str = restart(
        MAYBE_PATH,
        "",
        "Authorities of clients' certificates; the organisation kepd:read, kepd:operate or kepd:admin is their level.",
    )
    pods_socket: str = restart(
        MAYBE_PATH,
        "",
        "Unix socket of the kubelet's Pods API, for root, while the door is open; empty = none.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    socket: str = restart(PATH, "", "Unix socket of the gRPC API.", "<runDirectory>/kepd.sock")
    http_address: str = restart(
        ADDRESS, "127.0.0.1:10241", "Address that serves /metrics, /livez and /readyz; empty = off."
    )
    http_tls: HttpTls = HttpTls()
    door: Door = Door()
    read_group: str = key(GROUP, "kepd", "Group (name or gid) that may read; empty = root only.")
    operate_group: str = key(GROUP, "", "Group (name or gid) that may also pull, restart and drain; empty = root only.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    kubeconfig: str = restart(
        MAYBE_PATH, "", "kubeconfig; empty = the mounted service account if there is one, else no cluster."
    )
    servers: Words = restart(list_of(TEXT, "URLs"), (), "API servers to try in order, instead of the kubeconfig's.")
    qps: float = key(number(0.1, 10000), 5.0, "Requests per second to the API server.")
    burst: int = key(integer(1, 10000), 10, "Largest burst of requests to the API server.")
    compression: str = restart(choice("auto", "never"), "auto", "Whether lists come compressed from other machines.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestsSection:
    directory: str = restart(PATH, "/etc/kepd/manifests", "Directory of manifests.")
    rescan: float = key(duration(0.1), 20.0, "Interval between scans of the whole directory.")
    debounce: float = key(DURATION, 0.2, "How long a file must stay unchanged before it is read.")
    group_writable: bool = key(BOOL, False, "Also read manifests and directories that their group may write.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    enabled: bool = restart(BOOL, False, "Run the CRI proxy.")
    socket: str = restart(PATH, "", "Socket the proxy listens on.", "<runDirectory>/cri/cri.sock")
    link: str | None = restart(
        MAYBE_PATH, None, "Symlink that the kubelet connects to; empty = none.", "<runDirectory>/cri/kubelet.sock"
    )
    fail_open: bool = key(BOOL, True, "Let calls pass when kepd cannot decide.")
    assume_hidden_hooks: bool = key(BOOL, True, "Allow time for preStop hooks that kepd cannot see the kubelet run.")
    kubelet_config: str = key(
        TEXT,
        "/var/lib/kubelet/config.yaml",
        "Configuration file of the kubelet, or URL of its configz; the default finds the file, drop-ins and flags.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    node: NodeSection = NodeSection()
    runtime: RuntimeSection = RuntimeSection()
    api: Api = Api()
    kubernetes: Kubernetes = Kubernetes()
    manifests: ManifestsSection = ManifestsSection()
    images: Images = Images()
    devices: Devices = Devices()
    policies: Policies = Policies()
    pods: Pods = Pods()
    proxy: Proxy = Proxy()
    services: Services = Services()
    dns: Dns = Dns()
    telemetry: Telemetry = Telemetry()
