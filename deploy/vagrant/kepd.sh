#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kepd from the shared folder, as a package made on this machine; starts nothing yet.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends python3 python3-venv
rm -rf /usr/src/kepd
cp -r /vagrant /usr/src/kepd
cd /usr/src/kepd
scripts/package deb
apt-get install -y -qq --no-install-recommends ./dist/kepd_*.deb
