# SPDX-License-Identifier: Apache-2.0
"""Plugins of a kubelet: sockets in a directory, and what is asked over them."""
