# SPDX-License-Identifier: Apache-2.0
"""Whether a kubelet runs on this node, wherever its distribution keeps its configuration.

Owns: the places and names to look for. One sign is enough: to take a node for a bare one by mistake would let kepd
remove images that the kubelet still counts on, while the opposite mistake only leaves more images on the disk.
"""

from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path

from agent.drivers.node_programs import node_programs

PLACES = (
    "var/lib/kubelet/config.yaml",  # kubeadm, kind
    "etc/kubernetes/kubelet/kubelet-config.json",  # EKS, Amazon Linux 2
    "etc/kubernetes/kubelet/config.json",  # EKS, Amazon Linux 2023
    "etc/default/kubelet",  # AKS
    "etc/kubernetes/kubelet.yaml",  # Talos
    "etc/kubernetes/kubelet.conf",  # kubeadm's credentials
    "home/kubernetes/kubelet-config.yaml",  # GKE
    "var/lib/rancher/k3s/agent",
    "var/lib/rancher/rke2/agent",
    "var/lib/k0s/kubelet",
    "var/snap/microk8s/current/args/kubelet",
    # Sockets that a kubelet makes wherever its configuration lies.
    "var/lib/kubelet/pod-resources/kubelet.sock",
    "var/lib/kubelet/device-plugins/kubelet.sock",
)
PROGRAMS = frozenset({"kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "hyperkube"})
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


def kubelet_sign(environment: Mapping[str, str], root: Path = Path("/"), own: Container[str] = ()) -> str:
    """What speaks for a kubelet on this node, for people to read; empty if nothing does. `own` places say nothing."""
    if environment.get(IN_CLUSTER):
        return f"kepd runs in a pod ({IN_CLUSTER} is set)"
    for place in PLACES:
        with suppress(OSError):
            if f"/{place}" not in own and (root / place).exists():
                return f"{root / place} exists"
    for pid, name in node_programs(PROGRAMS, root):
        return f"process {pid} is a {name}"
    return ""
