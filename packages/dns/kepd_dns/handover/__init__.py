# SPDX-License-Identifier: Apache-2.0
"""What the daemon and kepd-dns write for each other."""
