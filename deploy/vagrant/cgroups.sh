#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# containerd leaves the groups of containers to systemd, as on nodes of clusters. kepd does with and without.
set -eu
mkdir -p /etc/containerd
cat >/etc/containerd/config.toml <<'TOML'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
TOML
systemctl restart containerd
