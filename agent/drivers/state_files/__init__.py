# SPDX-License-Identifier: Apache-2.0
"""Files that outlive the process, and the space they and the images have."""
