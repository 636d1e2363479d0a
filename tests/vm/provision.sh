#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a tree of Debian packages a machine that has kepd: by the Vagrantfile's own scripts, then what the machine alone
# needs. Called by disk.py.
set -eu
tree=$1 key=$2
in_tree="$(dirname "$0")/../../scripts/in_tree"

"$in_tree" "$tree" sh /vagrant/deploy/vagrant/containerd.sh
"$in_tree" "$tree" sh /vagrant/deploy/vagrant/kepd.sh
# Where a machine may come from, each ready to be put into place: one installed from its source, and one as a package.
if [ -d "$tree/usr/src/older" ]; then
    "$in_tree" "$tree" env DESTDIR=/usr/src/older/root PYTHON=/usr/bin/python3 /usr/src/older/scripts/install
fi
if [ -d "$tree/usr/src/previous" ]; then
    "$in_tree" "$tree" sh /usr/src/previous/scripts/package deb
    "$in_tree" "$tree" sh -c 'cd /usr/src/previous/dist && apt-get download containerd'
    # A repository as a release makes it, by a key that nobody has afterwards.
    GNUPGHOME=$(mktemp -d)
    export GNUPGHOME
    gpg --batch --quiet --passphrase '' --quick-gen-key kepd-test ed25519 sign
    "$(dirname "$0")/../../scripts/apt_repository.py" "$tree/srv/apt" "$tree"/usr/src/kepd/dist/kepd_*.deb \
        "$tree"/usr/src/previous/dist/kepd_*.deb --key kepd-test
    gpgconf --kill all
    rm -rf "$GNUPGHOME"
fi
# The machine reaches nothing, so what the tree's own tests need comes now. They start these two by themselves.
if [ -x "$tree/usr/bin/docker-registry" ]; then
    "$in_tree" "$tree" env KEPD_NO_VM=1 PIP_COMPILE=0 sh /usr/src/kepd/scripts/prepare
    "$in_tree" "$tree" systemctl -q disable docker-registry.service prometheus.service
fi
rm -f "$tree/usr/sbin/policy-rc.d"

echo kepd-vm >"$tree/etc/hostname"
echo '127.0.0.1 localhost kepd-vm' >"$tree/etc/hosts"
echo '/dev/vda / ext4 rw 0 1' >"$tree/etc/fstab"
# The one network that QEMU gives; nothing behind it answers.
cat >"$tree/etc/systemd/network/10-lan.network" <<'NETWORK'
[Match]
Name=en* eth*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
NETWORK
: >"$tree/etc/resolv.conf"
mkdir -p "$tree/root/.ssh" "$tree/var/log/journal"
chmod 700 "$tree/root/.ssh"
cp "$key" "$tree/root/.ssh/authorized_keys"
chmod 600 "$tree/root/.ssh/authorized_keys"
printf 'UseDNS no\nMaxSessions 40\nMaxStartups 40\n' >"$tree/etc/ssh/sshd_config.d/vm.conf"
"$in_tree" "$tree" systemctl -q enable systemd-networkd.service ssh.service
"$in_tree" "$tree" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-networkd-wait-online.service
"$in_tree" "$tree" apt-get clean
: >"$tree/etc/resolv.conf"
