# SPDX-License-Identifier: Apache-2.0
"""How short of disk and memory this node is."""
