# SPDX-License-Identifier: Apache-2.0
"""What can be shown: one module for each kind. Pure: whoever has a daemon's answers shows them."""
