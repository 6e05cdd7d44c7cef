"""Verbs of ``tidestate`` that know what a window is: entry points of the group ``tidestate.commands``."""
