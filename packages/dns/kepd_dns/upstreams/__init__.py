# SPDX-License-Identifier: Apache-2.0
"""Which server is asked next, and what is known of each."""
