#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a node of scripts/kind node-image: its kubelet calls kepd, by the steps of docs/cri-proxy.md, and pulls are one at a
# time. A registry of its own is at port 5000.
set -eu
dpkg --install /root/kepd.deb 2>&1
mkdir -p /etc/kepd/cri.d
cat >/etc/kepd/cri.d/one.yaml <<END
apiVersion: config.kepd.dev/v1beta1
kind: KepdConfiguration
images: {maxParallelPulls: 1}
END
echo '{version: "0.1", storage: {filesystem: {rootdirectory: /var/lib/registry}}, http: {addr: ":5000"}}' >/root/registry.yaml
systemctl is-active --quiet registry || systemd-run --quiet --unit=registry docker-registry serve /root/registry.yaml
install -m 644 /usr/share/kepd/systemd/kubelet-kepd.conf /etc/systemd/system/kubelet.service.d/30-kepd.conf
cd /var/lib/kubelet
sed -i 's#unix:///run/containerd/containerd.sock#unix:///run/kepd-cri/cri/kubelet.sock#' config.yaml instance-config.yaml
grep -q ^serializeImagePulls config.yaml || printf 'serializeImagePulls: false\nregistryPullQPS: 0\n' >>config.yaml
systemctl daemon-reload
systemctl restart kepd-cri kubelet
