"""Which store an argument means."""

from typing import Any, get_args

import pytest

from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.store import Memory, Parquet, RocksDB, StoreConfig, StoreName, store_of

SHORT = {"memory": Memory(), "parquet": Parquet(), "rocksdb": RocksDB(), None: Parquet()}


@pytest.mark.parametrize("name", [*get_args(StoreName), None])
def test_a_name_is_short_for_a_store_without_settings(name: StoreName | None) -> None:
    assert store_of(name) == SHORT[name]


def test_a_store_stays_with_its_settings() -> None:
    store = RocksDB(cache_dir="/mnt/state", max_levels=3)
    assert store_of(store) is store


@pytest.mark.parametrize("wrong", ["RocksDB", "redis", "", 5, True, RocksDB, ["memory"], {}])
def test_what_is_no_store_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r'"parquet", "memory" or "rocksdb".*RocksDB\(cache_dir=') as refused:
        store_of(wrong)
    assert refused.value.code == "store"
    assert refused.value.context["found"] == f"{wrong!r} ({type(wrong).__name__})"


def test_the_store_of_a_name_has_that_name() -> None:
    made: list[StoreConfig] = [store_of(name) for name in get_args(StoreName)]
    assert [one.name for one in made] == list(get_args(StoreName))
