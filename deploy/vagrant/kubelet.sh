#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A cluster of one node by kubeadm, whose kubelet reaches containerd through kepd. $KUBERNETES is a minor, such as v1.34.
set -eu
swapoff -a

# For the pods of the cluster: a bridge with addresses of 10.85.0.0/16, and NAT to the world.
mkdir -p /etc/cni/net.d
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

# Before the kubelet: it needs its runtime's socket to start anything.
install -m 0644 -D /usr/share/kepd/systemd/kubelet-kepd.conf /etc/systemd/system/kubelet.service.d/20-kepd.conf
systemctl daemon-reload
systemctl enable --now kepd-cri.service

[ -e /etc/kubernetes/admin.conf ] || {
    cat >/root/kubeadm.yaml <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  criSocket: unix:///run/kepd-cri/cri/kubelet.sock
  taints: []
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: stable-${KUBERNETES#v}
networking: {podSubnet: 10.85.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
serializeImagePulls: false
registryPullQPS: 0
YAML
    kubeadm init --config /root/kubeadm.yaml
}
mkdir -p /root/.kube
install -m 0600 /etc/kubernetes/admin.conf /root/.kube/config
