# SPDX-License-Identifier: Apache-2.0
"""Plans as elements of an nftables table."""
