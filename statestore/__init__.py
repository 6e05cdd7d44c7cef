"""State as tables: specs, change sets, three stores under one protocol, and their durable files.

Names are loaded when they are asked for, so that the command line starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidestate.statestore import lazy_exports

if TYPE_CHECKING:
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
    from tidestate.statestore.spec.changes import Applied as Applied
    from tidestate.statestore.spec.changes import ChangeSet as ChangeSet
    from tidestate.statestore.spec.changes import Lookup as Lookup
    from tidestate.statestore.spec.changes import Ranges as Ranges
    from tidestate.statestore.spec.changes import TableChanges as TableChanges
    from tidestate.statestore.spec.combiners import register_combiner as register_combiner
    from tidestate.statestore.spec.store import Memory as Memory
    from tidestate.statestore.spec.store import Parquet as Parquet
    from tidestate.statestore.spec.store import RocksDB as RocksDB
    from tidestate.statestore.spec.store import StateStore as StateStore
    from tidestate.statestore.spec.store import StateView as StateView
    from tidestate.statestore.spec.store import StoreConfig as StoreConfig
    from tidestate.statestore.spec.tables import Column as Column
    from tidestate.statestore.spec.tables import Group as Group
    from tidestate.statestore.spec.tables import TableSpec as TableSpec
    from tidestate.statestore.storage.objects import Objects as Objects
    from tidestate.statestore.stores.memory import MemoryStore as MemoryStore
    from tidestate.statestore.stores.parquet import ParquetStore as ParquetStore

lazy_exports.export(
    __name__,
    {
        "tidestate.statestore.spec.changes": ("Applied", "ChangeSet", "Lookup", "Ranges", "TableChanges"),
        "tidestate.statestore.spec.combiners": ("register_combiner",),
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
        "tidestate.statestore.stores.memory": ("MemoryStore",),
        "tidestate.statestore.storage.objects": ("Objects",),
        "tidestate.statestore.stores.parquet": ("ParquetStore",),
        "tidestate.statestore.spec.store": ("Memory", "Parquet", "RocksDB", "StateStore", "StateView", "StoreConfig"),
        "tidestate.statestore.spec.tables": ("Column", "Group", "TableSpec"),
    },
)
