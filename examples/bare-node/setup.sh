#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a machine with kepd's package and containerd a node without Kubernetes, with one pod behind one Service.
set -eu
here=$(dirname "$0")
kepd setup --yes --now
kepctl apply --wait -f "$here/web.yaml"
