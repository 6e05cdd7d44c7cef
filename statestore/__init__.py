"""State as tables: specs, change sets, three stores under one protocol, and their durable files.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore import lazily

if TYPE_CHECKING:
    from statestore.changes import Applied as Applied
    from statestore.changes import ChangeSet as ChangeSet
    from statestore.changes import Lookup as Lookup
    from statestore.changes import Ranges as Ranges
    from statestore.changes import TableChanges as TableChanges
    from statestore.combiners import register_combiner as register_combiner
    from statestore.errors import ConflictError as ConflictError
    from statestore.errors import CorruptionError as CorruptionError
    from statestore.errors import DataError as DataError
    from statestore.errors import FencedError as FencedError
    from statestore.errors import IncompatibleError as IncompatibleError
    from statestore.errors import InvariantError as InvariantError
    from statestore.errors import LimitError as LimitError
    from statestore.errors import NotFoundError as NotFoundError
    from statestore.errors import TidemarkError as TidemarkError
    from statestore.errors import UnavailableError as UnavailableError
    from statestore.errors import UsageError as UsageError
    from statestore.memory import MemoryStore as MemoryStore
    from statestore.objects import Objects as Objects
    from statestore.parquet import ParquetStore as ParquetStore
    from statestore.store import Memory as Memory
    from statestore.store import Parquet as Parquet
    from statestore.store import RocksDB as RocksDB
    from statestore.store import StateStore as StateStore
    from statestore.store import StateView as StateView
    from statestore.store import StoreConfig as StoreConfig
    from statestore.tables import Column as Column
    from statestore.tables import Group as Group
    from statestore.tables import TableSpec as TableSpec

__getattr__, __dir__ = lazily.names(
    __name__,
    {
        "statestore.changes": ("Applied", "ChangeSet", "Lookup", "Ranges", "TableChanges"),
        "statestore.combiners": ("register_combiner",),
        "statestore.errors": (
            "ConflictError",
            "CorruptionError",
            "DataError",
            "FencedError",
            "IncompatibleError",
            "InvariantError",
            "LimitError",
            "NotFoundError",
            "TidemarkError",
            "UnavailableError",
            "UsageError",
        ),
        "statestore.memory": ("MemoryStore",),
        "statestore.objects": ("Objects",),
        "statestore.parquet": ("ParquetStore",),
        "statestore.store": ("Memory", "Parquet", "RocksDB", "StateStore", "StateView", "StoreConfig"),
        "statestore.tables": ("Column", "Group", "TableSpec"),
    },
)
