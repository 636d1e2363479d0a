# SPDX-License-Identifier: Apache-2.0
"""Which images are fetched ahead of need."""
