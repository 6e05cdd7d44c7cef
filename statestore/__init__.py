"""State as tables: specs, change sets, three stores under one protocol, and their durable files."""

from statestore.changes import Applied as Applied
from statestore.changes import ChangeSet as ChangeSet
from statestore.changes import Lookup as Lookup
from statestore.changes import TableChanges as TableChanges
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
from statestore.objects import Objects as Objects
from statestore.store import Memory as Memory
from statestore.store import Parquet as Parquet
from statestore.store import RocksDB as RocksDB
from statestore.store import StateStore as StateStore
from statestore.store import StateView as StateView
from statestore.store import StoreConfig as StoreConfig
from statestore.tables import Column as Column
from statestore.tables import TableSpec as TableSpec
