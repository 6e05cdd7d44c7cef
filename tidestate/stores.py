"""Where state lies while a job runs, ``on_spark(…, store=stores.RocksDB())``; and what a store is made of."""

from tidestate.statestore import lazy_exports

lazy_exports.export(__name__, __file__)
