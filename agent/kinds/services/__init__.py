# SPDX-License-Identifier: Apache-2.0
"""Of Services and names."""
