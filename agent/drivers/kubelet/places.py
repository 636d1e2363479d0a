# SPDX-License-Identifier: Apache-2.0
"""Where the kubelet of this node has its configuration: on its command line, else where its distribution puts it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml

from agent.drivers.node_programs import node_programs

# A file, its folder of drop-ins, and whose layout that is.
LAYOUTS = (
    ("/var/lib/kubelet/config.yaml", "", "kubeadm"),
    ("/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet/config.json.d", "EKS, Amazon Linux 2023"),
    ("/etc/kubernetes/kubelet/kubelet-config.json", "", "EKS, Amazon Linux 2"),
    ("/etc/default/kubeletconfig.json", "", "AKS"),
    ("/etc/kubernetes/kubelet.yaml", "", "Talos"),
    ("/home/kubernetes/kubelet-config.yaml", "", "GKE"),
)
# A kubelet inside of another program shows no flags; these take drop-ins, and have its flags in a file of their own.
EMBEDDED = (
    ("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d", "/etc/rancher/k3s/config.yaml", "k3s"),
    ("/var/lib/rancher/rke2/agent/etc/kubelet.conf.d", "/etc/rancher/rke2/config.yaml", "rke2"),
)
ARGUMENTS = "kubelet-arg"


class KubeletPlace(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is empty where there is no file; `flags` are those of the kubelet, without dashes."""

    path: str = ""
    drop_ins: str = ""
    flags: Mapping[str, str] = msgspec.field(default_factory=dict)
    source: str = ""


def find_kubelet(root: Path = Path("/")) -> KubeletPlace:
    """Raises OSError where nothing is to be found."""
    for pid, arguments in _kubelets(root):
        flags = read_flags(arguments)
        # It may run in a container, so its files are looked for where it sees them.
        seen = f"/proc/{pid}/root"
        base = seen if (root / seen.lstrip("/") / flags.get("config", "").lstrip("/")).is_file() else ""
        return KubeletPlace(
            path=base + flags["config"] if flags.get("config") else "",
            drop_ins=base + flags["config-dir"] if flags.get("config-dir") else "",
            flags=flags,
            source=f"the command line of process {pid}",
        )
    for drop_ins, arguments_file, name in EMBEDDED:
        if (root / drop_ins.lstrip("/")).is_dir():
            flags = _embedded_flags(root / arguments_file.lstrip("/"))
            return KubeletPlace(drop_ins=drop_ins, flags=flags, source=f"{drop_ins} of {name}")
    for path, drop_ins, name in LAYOUTS:
        if (root / path.lstrip("/")).is_file():
            return KubeletPlace(path=path, drop_ins=drop_ins, source=f"{path} of {name}")
    raise FileNotFoundError(
        "no kubelet runs in sight, and its files are at none of the usual places; set proxy.kubeletConfig"
    )


def read_flags(arguments: list[str]) -> dict[str, str]:
    """`--name=value`, `--name value` and `--name`, in the order given; the last one counts."""
    flags: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            flags[name] = value
            name = "" if "=" in argument else name
        elif name:
            flags[name] = argument
            name = ""
    return flags


def _kubelets(root: Path) -> Iterator[tuple[str, list[str]]]:
    for pid, _ in node_programs({"kubelet"}, root):
        with suppress(OSError):
            line = (root / "proc" / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
            yield str(pid), line.split("\0")[1:]


def _embedded_flags(path: Path) -> dict[str, str]:
    """`kubelet-arg: [name=value]`; a file that is not there or not readable has none."""
    try:
        document = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError):
        return {}
    listed = document.get(ARGUMENTS) if isinstance(document, dict) else None
    words = [listed] if isinstance(listed, str) else listed if isinstance(listed, list) else []
    return read_flags([f"--{str(word).lstrip('-')}" for word in words])
