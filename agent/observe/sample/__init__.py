# SPDX-License-Identifier: Apache-2.0
"""What one pass found, and what follows from two."""
