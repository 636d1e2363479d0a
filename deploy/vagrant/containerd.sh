#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# containerd of Debian with the plugins for a bridge: pods get addresses of 10.85.0.0/16 and reach the world by NAT.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends containerd runc containernetworking-plugins nftables iptables \
    conntrack python3-iptables iproute2 kmod ca-certificates curl gpg rsync
mkdir -p /etc/cni/net.d /etc/containerd
cat >/etc/cni/net.d/10-bridge.conflist <<'CNI'
{
  "cniVersion": "1.0.0",
  "name": "bridge",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.85.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
CNI
# What kubeadm asks for; for a bare node it makes no difference.
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
printf 'overlay\nbr_netfilter\n' >/etc/modules-load.d/containerd.conf
systemctl restart systemd-modules-load
systemctl restart containerd
