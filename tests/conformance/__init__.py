"""Cases taken from the tests of nine public systems, and a runner of any case in their format (see FORMAT.md).

``python -m tests.conformance tests/conformance/cases`` runs them through the public description and its harness.
"""
