# SPDX-License-Identifier: Apache-2.0
"""Who may use an image, and with which credentials it is pulled."""
