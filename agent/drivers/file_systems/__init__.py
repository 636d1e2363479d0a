# SPDX-License-Identifier: Apache-2.0
"""File systems of this node."""
