# SPDX-License-Identifier: Apache-2.0
"""Of calls through the CRI proxy."""
