# SPDX-License-Identifier: Apache-2.0
"""Our iptables rules, of the nft and of the legacy variant: by iptables-restore and iptables-save."""
