"""Where the entries of an Arrow array lie, however it was made."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from tidestate.statestore.arrays import ends_of
from tidestate.statestore.spec.keyhash import key_hash
from tidestate.statestore.spec.valuehash import hash_tables
from tidestate.statestore.stores.rocks.bytestrings import from_arrow

TEXTS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


@pytest.mark.parametrize("kind", TEXTS)
def test_a_buffer_may_be_longer_than_its_array_needs(kind: pa.DataType) -> None:
    wide = kind in (pa.large_string(), pa.large_binary())
    ends = struct.pack("<4q" if wide else "<4i", 0, 1, 3, 3) + b"rest."
    odd = pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(ends), pa.py_buffer(b"abcdefg")])
    plain = pa.array([b"a", b"bc", b""]).cast(kind)
    assert odd.equals(plain)
    assert ends_of(odd).tolist() == [0, 1, 3, 3]
    assert ends_of(odd.slice(1)).tolist() == [1, 3, 3]
    assert from_arrow(odd).to_list() == [b"a", b"bc", b""]
    assert hash_tables({"t": pa.table({"k": odd})}) == hash_tables({"t": pa.table({"k": plain})})
    assert key_hash(pa.table({"k": odd})).tolist() == key_hash(pa.table({"k": plain})).tolist()


@pytest.mark.parametrize("kind", TEXTS)
def test_an_array_of_nothing_has_no_ends(kind: pa.DataType) -> None:
    assert ends_of(pa.array([], kind)).tolist() == []
