#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A node without Kubernetes: images, pods and services from /etc/kepd/manifests.
set -eu
install -m 0644 -D /opt/kepd/share/systemd/pods.conf /etc/systemd/system/kepd.service.d/pods.conf
mkdir -p /etc/kepd/config.d
address=$(ip -4 -o addr show scope global | awk '{ sub("/.*", "", $4); print $4; exit }')
cat >/etc/kepd/config.d/node.yaml <<YAML
apiVersion: config.kepd.dev/v1alpha1
kind: KepdConfiguration
node: {addresses: [$address]}
pods: {enabled: true}
services: {detectLocal: {clusterCIDRs: [10.85.0.0/16]}}
YAML
install -m 0644 /usr/src/kepd/deploy/vagrant/web.yaml /etc/kepd/manifests/web.yaml
systemctl daemon-reload
systemctl enable --now kepd.socket kepd.service
