# SPDX-License-Identifier: Apache-2.0
"""What people are shown of names."""
