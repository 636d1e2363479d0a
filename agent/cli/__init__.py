# SPDX-License-Identifier: Apache-2.0
"""kepctl: commands return data, one module renders it."""
