# SPDX-License-Identifier: Apache-2.0
"""Netlink as the drivers of nftables and of connection tracking share it."""
