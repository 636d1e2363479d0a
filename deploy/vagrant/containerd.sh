#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# containerd of Debian as its package sets it up, with the plugins of CNI.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends containerd runc containernetworking-plugins nftables iptables \
    conntrack python3-iptables iproute2 kmod ca-certificates curl gpg rsync
printf 'overlay\nbr_netfilter\n' >/etc/modules-load.d/containerd.conf
systemctl restart systemd-modules-load
