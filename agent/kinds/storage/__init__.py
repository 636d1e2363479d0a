# SPDX-License-Identifier: Apache-2.0
"""Claims of storage, volumes and classes."""
