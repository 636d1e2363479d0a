#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a tree of Debian packages a machine that has kepd: by the Vagrantfile's own scripts, in the tree.
# Called by disk.py in namespaces of its own, so that what it mounts is gone with it.
set -eu
tree=$1 key=$2

mount --make-rprivate /
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
# How this machine reaches the archives of Debian and Python.
cp /etc/resolv.conf "$tree/etc/resolv.conf"
for path in /etc/pip.conf /etc/xdg/pip /etc/ssl/certs ${PIP_FIND_LINKS:-}; do
    [ -e "$path" ] || continue
    if [ -d "$path" ]; then mkdir -p "$tree$path"; else touch "$tree$path"; fi
    mount --bind -o ro "$path" "$tree$path"
done
# The tree shares this machine's kernel for now: its own settings are made when it starts.
mount --bind "$tree/bin/true" "$tree/usr/sbin/sysctl"

run() { chroot "$tree" env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"; }
printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
chmod 755 "$tree/usr/sbin/policy-rc.d"
run sh /vagrant/deploy/vagrant/containerd.sh
run sh /vagrant/deploy/vagrant/kepd.sh
rm "$tree/usr/sbin/policy-rc.d"

echo kepd-vm >"$tree/etc/hostname"
echo '127.0.0.1 localhost kepd-vm' >"$tree/etc/hosts"
echo '/dev/vda / ext4 rw 0 1' >"$tree/etc/fstab"
# Of the one network that QEMU gives; nothing behind it answers.
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
run systemctl enable systemd-networkd.service ssh.service >/dev/null 2>&1
run systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-networkd-wait-online.service man-db.timer >/dev/null 2>&1
run apt-get clean
