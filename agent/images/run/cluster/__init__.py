# SPDX-License-Identifier: Apache-2.0
"""Which images a cluster will want on this node."""
