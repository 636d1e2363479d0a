# SPDX-License-Identifier: Apache-2.0
"""The flows that the kernel tracks, and its limits."""
