#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kepd from the shared folder by `make install`, as anybody would install it; starts nothing yet.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends make python3 python3-venv
rm -rf /usr/src/kepd
cp -r /vagrant /usr/src/kepd
make -C /usr/src/kepd install
systemd-sysusers
systemd-tmpfiles --create kepd.conf
systemctl restart systemd-modules-load
sysctl -q --system
systemctl daemon-reload
