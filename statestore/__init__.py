"""State as tables: specs, change sets, three stores under one protocol, and their durable files.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore import lazily

if TYPE_CHECKING:
    from tidestate.statestore.changes import Applied as Applied
    from tidestate.statestore.changes import ChangeSet as ChangeSet
    from tidestate.statestore.changes import Lookup as Lookup
    from tidestate.statestore.changes import Ranges as Ranges
    from tidestate.statestore.changes import TableChanges as TableChanges
    from tidestate.statestore.combiners import register_combiner as register_combiner
    from tidestate.statestore.errors import ConflictError as ConflictError
    from tidestate.statestore.errors import CorruptionError as CorruptionError
    from tidestate.statestore.errors import DataError as DataError
    from tidestate.statestore.errors import FencedError as FencedError
    from tidestate.statestore.errors import IncompatibleError as IncompatibleError
    from tidestate.statestore.errors import InvariantError as InvariantError
    from tidestate.statestore.errors import LimitError as LimitError
    from tidestate.statestore.errors import NotFoundError as NotFoundError
    from tidestate.statestore.errors import TidestateError as TidestateError
    from tidestate.statestore.errors import UnavailableError as UnavailableError
    from tidestate.statestore.errors import UsageError as UsageError
    from tidestate.statestore.memory import MemoryStore as MemoryStore
    from tidestate.statestore.objects import Objects as Objects
    from tidestate.statestore.parquet import ParquetStore as ParquetStore
    from tidestate.statestore.store import Memory as Memory
    from tidestate.statestore.store import Parquet as Parquet
    from tidestate.statestore.store import RocksDB as RocksDB
    from tidestate.statestore.store import StateStore as StateStore
    from tidestate.statestore.store import StateView as StateView
    from tidestate.statestore.store import StoreConfig as StoreConfig
    from tidestate.statestore.tables import Column as Column
    from tidestate.statestore.tables import Group as Group
    from tidestate.statestore.tables import TableSpec as TableSpec

__getattr__, __dir__ = lazily.names(
    __name__,
    {
        "tidestate.statestore.changes": ("Applied", "ChangeSet", "Lookup", "Ranges", "TableChanges"),
        "tidestate.statestore.combiners": ("register_combiner",),
        "tidestate.statestore.errors": (
            "ConflictError",
            "CorruptionError",
            "DataError",
            "FencedError",
            "IncompatibleError",
            "InvariantError",
            "LimitError",
            "NotFoundError",
            "TidestateError",
            "UnavailableError",
            "UsageError",
        ),
        "tidestate.statestore.memory": ("MemoryStore",),
        "tidestate.statestore.objects": ("Objects",),
        "tidestate.statestore.parquet": ("ParquetStore",),
        "tidestate.statestore.store": ("Memory", "Parquet", "RocksDB", "StateStore", "StateView", "StoreConfig"),
        "tidestate.statestore.tables": ("Column", "Group", "TableSpec"),
    },
)
