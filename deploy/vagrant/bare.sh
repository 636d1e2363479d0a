#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A node without Kubernetes: the example that comes with the package.
set -eu
exec sh /usr/share/doc/kepd/examples/bare-node/setup.sh
