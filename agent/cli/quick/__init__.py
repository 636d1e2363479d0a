# SPDX-License-Identifier: Apache-2.0
"""Answers of kepctl without click, gRPC and protobuf."""
