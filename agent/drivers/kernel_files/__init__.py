# SPDX-License-Identifier: Apache-2.0
"""Files in which the kernel counts."""
