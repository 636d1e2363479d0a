# SPDX-License-Identifier: Apache-2.0
"""The outside, one package per system. Drivers know neither planes nor each other; attach/ joins them to a plane."""
