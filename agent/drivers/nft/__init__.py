# SPDX-License-Identifier: Apache-2.0
"""Our nftables table: structure by the nft binary, everything else by netlink."""
