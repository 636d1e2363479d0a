# SPDX-License-Identifier: Apache-2.0
"""The node: what it is, has and uses."""
