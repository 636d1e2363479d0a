# SPDX-License-Identifier: Apache-2.0
"""Commands for images, Services and devices."""
