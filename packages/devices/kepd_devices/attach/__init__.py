# SPDX-License-Identifier: Apache-2.0
"""The devices plane attached: its drivers, its plugins, what it tells of itself."""
