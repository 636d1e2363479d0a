# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host's interfaces."""
