#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a machine with kepd's package and containerd a node without Kubernetes: images, pods and Services from
# /etc/kepd/manifests, with one pod behind one Service. Pods have addresses of 10.85.0.0/16, as the CNI network says.
set -eu
here=$(dirname "$0")
install -m 0644 -D /usr/share/kepd/systemd/pods.conf /etc/systemd/system/kepd.service.d/pods.conf
install -m 0644 -D /usr/share/kepd/systemd/services.conf /etc/systemd/system/kepd.service.d/services.conf
mkdir -p /etc/kepd/config.d
address=$(ip -4 -o addr show scope global | awk '{ sub("/.*", "", $4); print $4; exit }')
cat >/etc/kepd/config.d/node.yaml <<YAML
apiVersion: config.kepd.dev/v1alpha1
kind: KepdConfiguration
node: {addresses: [$address]}
pods: {enabled: true}
services: {detectLocal: {clusterCIDRs: [10.85.0.0/16]}}
YAML
install -m 0644 "$here/web.yaml" /etc/kepd/manifests/web.yaml
systemctl daemon-reload
systemctl enable --now kepd.socket kepd.service
