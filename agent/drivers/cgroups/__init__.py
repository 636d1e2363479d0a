# SPDX-License-Identifier: Apache-2.0
"""Control groups of this node."""
