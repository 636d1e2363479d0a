# SPDX-License-Identifier: Apache-2.0
"""What is wanted on this node, once for all planes."""
