# SPDX-License-Identifier: Apache-2.0
"""Value types of the domain. Nothing here does I/O or imports more than msgspec."""
