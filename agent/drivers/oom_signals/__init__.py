# SPDX-License-Identifier: Apache-2.0
"""What the kernel says when a group has no memory left."""
