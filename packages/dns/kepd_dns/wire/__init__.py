# SPDX-License-Identifier: Apache-2.0
"""Messages of the DNS: bytes in, values out, and the way back."""
