#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In the tree of a node for kind: what the Dockerfile of images/base does after it has the packages, with Debian's own
# containerd, and what a root without CAP_SYS_RESOURCE and groups of version 1 ask for.
set -eu
chmod 755 /kind /kind/bin /kind/bin/* /usr/local/bin/*
cd /lib/systemd/system
rm -f sysinit.target.wants/systemd-tmpfiles-setup.service multi-user.target.wants/* local-fs.target.wants/* \
    sockets.target.wants/*udev* sockets.target.wants/*initctl* basic.target.wants/* /etc/systemd/system/*.wants/*
echo ReadKMsg=no >>/etc/systemd/journald.conf
for program in containerd ctr; do ln -s "/usr/bin/$program" /usr/local/bin/; done
mkdir -p /etc/kubernetes/manifests /kind/manifests /opt/cni
ln -sfn /usr/lib/cni /opt/cni/bin
ctr oci spec | jq '.hooks.createContainer = [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
    >/etc/containerd/cri-base.json

sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' /etc/containerd/config.toml
sed -i '/^OOMScoreAdjust/d' /etc/systemd/system/containerd.service
# Its images before it asks for them; and this kubelet takes groups of version 1 when it is told to.
cat >/kind/bin/before-kubelet <<'SCRIPT'
#!/bin/sh -eu
cd /var/lib/kubelet
[ -e /sys/fs/cgroup/cgroup.controllers ] || grep -q ^failCgroupV1 config.yaml || echo 'failCgroupV1: false' >>config.yaml
cd /kind/images
case $(hostname) in *-control-plane) set -- control/*.tar ;; esac
[ -e done ] || for one in *.tar "$@"; do ctr -n k8s.io images import "$one"; done
touch done
SCRIPT
chmod 755 /kind/bin/before-kubelet
printf '[Unit]\nAfter=containerd.service\n[Service]\nTimeoutStartSec=infinity\nExecStartPre=/kind/bin/before-kubelet\n' \
    >/etc/systemd/system/kubelet.service.d/20-here.conf
systemctl -q enable kubelet containerd undo-mount-hacks
systemctl -q mask systemd-binfmt

# kind applies one of each; scripts/kind_alone connects the pods.
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kind, namespace: kube-system}\n' |
    tee /kind/manifests/default-cni.yaml >/kind/manifests/default-storage.yaml
