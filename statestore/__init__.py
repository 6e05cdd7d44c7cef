"""State as tables: specs, change sets, three stores under one protocol, and their durable files.

The public names are those of ``__init__.pyi``. A module is loaded when one of its names is first used, so that the
command line starts fast.
"""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
