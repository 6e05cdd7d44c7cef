"""Mutants: small faults put into a copy of the sources, each of which one named test must notice.

``python -m tools.mutants list`` names them, ``run`` tries them. They are data, a file a layer, in ``listed/``.
"""
