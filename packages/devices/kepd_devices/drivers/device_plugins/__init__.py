# SPDX-License-Identifier: Apache-2.0
"""Device plugins: where they register, and calls of them."""
