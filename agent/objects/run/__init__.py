# SPDX-License-Identifier: Apache-2.0
"""Where objects meet files and the disk."""
