# SPDX-License-Identifier: Apache-2.0
"""Commands about the node and the daemon."""
