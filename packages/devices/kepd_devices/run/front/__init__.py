# SPDX-License-Identifier: Apache-2.0
"""kepd between device plugins and a kubelet."""
