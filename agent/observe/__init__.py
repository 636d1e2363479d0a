# SPDX-License-Identifier: Apache-2.0
"""Figures of containers, pods and the node, as the kernel counts them."""
