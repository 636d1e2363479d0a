#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Becomes systemd as the first process of its namespaces, on this machine's files with an installation laid over them.
# Nothing is written outside of SCRATCH: what is written goes into memory. Called by booted.py, inside `unshare`.
set -eu
scratch=$1 installation=$2 python=$3 group=$4
root=$scratch/root

mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$root"
# Copied, for it lies below / too, and layers may not lie in one another.
cp -a "$installation/." "$scratch/upper/"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
# A control group of our own, which the caller removes; below it systemd keeps its units.
groups=$root/sys/fs/cgroup/systemd
mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
mkdir "$groups"
mount -t cgroup -o none,name=systemd,xattr cgroup "$groups"
mkdir "$groups/$group"
echo 0 >"$groups/$group/cgroup.procs"
umount "$groups"
# Not where the units may not look, as below /root.
mkdir -p "$root/opt/python"
mount --bind "$python" "$root/opt/python"
for name in python python3 python3.11; do
    [ ! -e "$root/opt/kepd/bin/$name" ] || ln -sfn /opt/python/bin/python3 "$root/opt/kepd/bin/$name"
done

# Of this machine's units none, so that nothing starts but what a test asks for.
units=$root/usr/lib/systemd/system
mount -t tmpfs tmpfs "$units"
cp "$installation"/usr/lib/systemd/system/kepd* "$units"
rm -rf "$root/etc/systemd/system"
mkdir -p "$root/etc/systemd/system"
for target in sysinit basic shutdown sockets multi-user umount; do
    printf '[Unit]\nDefaultDependencies=no\n' >"$units/$target.target"
done
ip link set lo up
chroot "$root" systemd-sysusers
chroot "$root" systemd-tmpfiles --create kepd.conf
# shellcheck disable=SC2016  # the inner shell's words
exec unshare --cgroup sh -c 'mount -t cgroup -o none,name=systemd,xattr cgroup "$1/sys/fs/cgroup/systemd" &&
    exec chroot "$1" /usr/bin/env -i container=kepd PATH=/opt/kepd/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=0' sh "$root"
