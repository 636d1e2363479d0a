# SPDX-License-Identifier: Apache-2.0
"""Claims of storage, the volumes that serve them, and their classes."""
