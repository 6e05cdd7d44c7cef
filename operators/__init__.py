"""Window operators: describe a windowed computation, run it standalone or on Spark.

The public names are those of ``__init__.pyi``. A module is loaded when one of its names is first used, so that the
command line starts fast.
"""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
