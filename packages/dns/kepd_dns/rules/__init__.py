# SPDX-License-Identifier: Apache-2.0
"""What the kernel is told: rules that lead questions to kepd-dns past connection tracking."""
