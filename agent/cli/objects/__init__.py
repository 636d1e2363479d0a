# SPDX-License-Identifier: Apache-2.0
"""Words and files that name objects."""
