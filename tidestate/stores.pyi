"""Where state lies while a job runs, ``on_spark(…, store=stores.RocksDB())``; and what a store is made of."""

__all__ = [
    # To choose from
    "Parquet",
    "RocksDB",
    "Memory",
    # The protocol of a store
    "StateStore",
    "StateView",
    "TableView",
    "Lookup",
    "Ranges",
    "KeyRange",
    "key_range",
    # What its tables are
    "TableSpec",
    "Column",
    "Group",
    # What is applied to it
    "ChangeSet",
    "TableChanges",
    "Applied",
    # Stores by hand, and the storage behind them
    "MemoryStore",
    "ParquetStore",
    "Objects",
    "StoreConfig",
]

from tidestate.statestore.spec.changes import Applied as Applied
from tidestate.statestore.spec.changes import ChangeSet as ChangeSet
from tidestate.statestore.spec.changes import Lookup as Lookup
from tidestate.statestore.spec.changes import Ranges as Ranges
from tidestate.statestore.spec.changes import TableChanges as TableChanges
from tidestate.statestore.spec.keyrange import KeyRange as KeyRange
from tidestate.statestore.spec.keyrange import key_range as key_range
from tidestate.statestore.spec.store import Memory as Memory
from tidestate.statestore.spec.store import Parquet as Parquet
from tidestate.statestore.spec.store import RocksDB as RocksDB
from tidestate.statestore.spec.store import StateStore as StateStore
from tidestate.statestore.spec.store import StateView as StateView
from tidestate.statestore.spec.store import StoreConfig as StoreConfig
from tidestate.statestore.spec.store import TableView as TableView
from tidestate.statestore.spec.tables import Column as Column
from tidestate.statestore.spec.tables import Group as Group
from tidestate.statestore.spec.tables import TableSpec as TableSpec
from tidestate.statestore.storage.objects import Objects as Objects
from tidestate.statestore.stores.memory import MemoryStore as MemoryStore
from tidestate.statestore.stores.parquet import ParquetStore as ParquetStore
