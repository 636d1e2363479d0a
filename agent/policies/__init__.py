# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies of a bare node, in the kernel before a pod's first packet."""
