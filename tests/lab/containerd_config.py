# SPDX-License-Identifier: Apache-2.0
"""The files a private containerd reads: its configuration, the CNI network, the registries it may use.

Owns: both configuration formats (version 2 for containerd 1.x, version 3 for 2.x) and the choice between them.
Never: starts containerd or probes the machine; what it must know arrives as arguments, so the text can be tested alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tests.lab.place import Place

__all__ = ["ContainerdSettings", "render_conflist", "render_containerd_config", "write_registry_hosts"]

HEAD = Template("""\
version = $version
root = "$directory/root"
state = "$directory/state"
disabled_plugins = [$disabled]

[grpc]
  address = "$socket"

[plugins."io.containerd.internal.v1.opt"]
  path = "$directory/opt"
""")

VERSION_2 = Template("""
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause"
  restrict_oom_score_adj = $restrict_oom
  netns_mounts_under_state_dir = true
  max_concurrent_downloads = $downloads
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$runc"
        Root = "$directory/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$cni_directory"
    conf_dir = "$directory/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$directory/certs.d"
""")

VERSION_3 = Template("""
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "$snapshotter"
  max_concurrent_downloads = $downloads
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "$pause"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "$directory/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = $restrict_oom
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["$directory/cdi"]
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$runc"
      Root = "$directory/runc"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    $cni_key = $cni_value
    conf_dir = "$directory/cni"

[plugins."io.containerd.transfer.v1.local"]
  config_path = "$directory/certs.d"

[plugins."io.containerd.nri.v1.nri"]
  disable = true
""")

UNUSED_SNAPSHOTTERS = ("btrfs", "zfs", "devmapper")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerdSettings:
    """What differs between machines and labs."""

    version: tuple[int, int]
    pause_image: str
    runc: Path
    cni_directory: Path
    snapshotter: str
    restrict_oom_score_adj: bool
    max_concurrent_downloads: int


def render_containerd_config(place: Place, settings: ContainerdSettings) -> str:
    """config.toml in the format of the containerd at hand; 1.6 and 1.7 know version 2, 2.x version 3."""
    is_modern = settings.version >= (2, 0)
    has_several_cni_directories = settings.version >= (2, 1)
    unused = UNUSED_SNAPSHOTTERS if is_modern else (*UNUSED_SNAPSHOTTERS, "aufs")
    values = {
        "version": 3 if is_modern else 2,
        "directory": place.directory,
        "socket": place.containerd_socket,
        "disabled": ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in unused),
        "pause": settings.pause_image,
        "restrict_oom": "true" if settings.restrict_oom_score_adj else "false",
        "downloads": settings.max_concurrent_downloads,
        "snapshotter": settings.snapshotter,
        "runc": settings.runc,
        "cni_directory": settings.cni_directory,
        "cni_key": "bin_dirs" if has_several_cni_directories else "bin_dir",
        "cni_value": f'["{settings.cni_directory}"]' if has_several_cni_directories else f'"{settings.cni_directory}"',
    }
    return HEAD.substitute(values) + (VERSION_3 if is_modern else VERSION_2).substitute(values)


def render_conflist(place: Place) -> str:
    """The pod network; without masquerading, because that calls iptables for each pod (LAB-6)."""
    bridge = {
        "type": "bridge",
        "bridge": place.bridge,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(place.directory / "ipam"),
            "ranges": [[{"subnet": place.subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": place.name, "plugins": [bridge, portmap]}, indent=1)


def render_hosts(address: str) -> str:
    """hosts.toml: plain http for one address; containerd 2.x would try https on loopback (LAB-12)."""
    return f'server = "http://{address}"\n[host."http://{address}"]\n  capabilities = ["pull", "resolve"]\n'


def write_registry_hosts(place: Place, addresses: Sequence[str]) -> None:
    """One folder per address; containerd reads them at each pull, so no restart is needed."""
    for address in addresses:
        folder = place.directory / "certs.d" / address
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(render_hosts(address), "utf-8")
