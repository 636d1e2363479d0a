# SPDX-License-Identifier: Apache-2.0
"""CDI: files that say what a container needs so that it can use a device."""
