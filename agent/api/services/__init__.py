# SPDX-License-Identifier: Apache-2.0
"""The services of the process itself; those of a plane lie in its `attach/`."""
