# SPDX-License-Identifier: Apache-2.0
"""A file becomes a pod: shape, reading, annotations, references, validation."""
