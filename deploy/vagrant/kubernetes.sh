#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Kubernetes' own packages, unless the box has its programs. $KUBERNETES is a minor, such as v1.34.
set -eu
[ -z "$(command -v kubeadm)" ] || exit 0
export DEBIAN_FRONTEND=noninteractive
repository="https://pkgs.k8s.io/core:/stable:/$KUBERNETES/deb/"
key=/usr/share/keyrings/kubernetes.gpg
curl -fsSL "${repository}Release.key" | gpg --dearmor --yes -o "$key"
printf 'deb [signed-by=%s] %s /\n' "$key" "$repository" >/etc/apt/sources.list.d/kubernetes.list
apt-get update -qq
apt-get install -y -qq --no-install-recommends kubelet kubeadm kubectl cri-tools
