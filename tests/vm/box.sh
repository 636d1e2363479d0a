#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a tree of Debian packages the inside of a box for Vagrant. Called by box.py.
set -eu
tree=$1
in_tree="$(dirname "$0")/../../scripts/in_tree"

"$in_tree" "$tree" useradd --create-home --shell /bin/bash vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$tree/etc/sudoers.d/vagrant"
chmod 440 "$tree/etc/sudoers.d/vagrant"
# The key that every Vagrant has; it puts another into its place at the first start.
install -D -m 600 /usr/share/rubygems-integration/all/gems/vagrant-2.*/keys/vagrant.pub \
    "$tree/home/vagrant/.ssh/authorized_keys"
"$in_tree" "$tree" chown -R vagrant:vagrant /home/vagrant/.ssh
"$in_tree" "$tree" chmod 700 /home/vagrant/.ssh
echo 'UseDNS no' >"$tree/etc/ssh/sshd_config.d/box.conf"

echo '/dev/vda / ext4 rw 0 1' >"$tree/etc/fstab"
echo bookworm >"$tree/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 bookworm\n' >"$tree/etc/hosts"
printf '[Match]\nName=eth0\n[Network]\nDHCP=ipv4\n' >"$tree/etc/systemd/network/10-eth0.network"
"$in_tree" "$tree" systemctl -q enable systemd-networkd.service ssh.service
"$in_tree" "$tree" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-networkd-wait-online.service

# It reaches the archives as this machine does: by the same authorities, index and word on dates. The first address of
# the network that vagrant-libvirt makes answers names.
cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
for path in /etc/pip.conf /etc/xdg/pip; do
    [ ! -e "$path" ] || { rm -rf "$tree$path" && cp -rL "$path" "$tree$path"; }
done
apt-config dump | grep -E '^Acquire::Check-' >"$tree/etc/apt/apt.conf.d/90archives" || true
rm -f "$tree/etc/resolv.conf"
echo 'nameserver 192.168.121.1' >"$tree/etc/resolv.conf"

# containerd has not started until it has the images, so nobody asks a registry, whoever starts it anew meanwhile.
mkdir -p "$tree/etc/systemd/system/containerd.service.d"
cat >"$tree/etc/systemd/system/containerd.service.d/images.conf" <<'UNIT'
[Service]
TimeoutStartSec=infinity
ExecStartPost=/bin/sh -ec 'for image in /root/images/*.tar; do \
    [ ! -e "$image" ] || { ctr -n k8s.io images import "$image"; rm "$image"; }; done'
UNIT
"$in_tree" "$tree" apt-get clean
: >"$tree/etc/machine-id"
