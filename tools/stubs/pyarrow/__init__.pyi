# What this project uses of pyarrow, for mypy. tests/package/test_pyarrow_stub.py compares it with the installed one.
# Classes are not generic: the type of a column is data, in its schema, and known when a job runs.
from . import ipc as ipc
from . import types as types
from ._arrays import *
from ._files import *
from ._tables import *
from ._types import *

class ArrowException(Exception): ...
class ArrowInvalid(ValueError, ArrowException): ...
class ArrowNotImplementedError(NotImplementedError, ArrowException): ...

__version__: str
