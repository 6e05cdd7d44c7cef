"""State that was written under an older form of its table, read through the newer one. Pure.

A file describes its table as it was. Columns are matched by identity, never by name: a value column that the newer
form has not is left out, one that the older form had not is null (which every combiner but ``replace`` passes over,
and a ``replace`` that nobody has set is null too), one of a wider type is cast, one with another name is renamed. So
nothing is rewritten when a table changes: folds do that by and by. A key may be of a wider type too, if equal values
have equal hashes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from tidestate.statestore.spec.tables import Column, Group, TableSpec


def project_columns(old_spec: TableSpec, spec: TableSpec, rows: pa.Table) -> pa.Table:
    """``rows`` that have the form ``old_spec`` in the form ``spec``; other columns that they have are in front."""
    if old_spec == spec:
        return rows
    was = {column.lasting: column.name for column in (*old_spec.key, *old_spec.values)}
    extra_names = [name for name in rows.column_names if name not in old_spec.schema.names]
    columns: list[pa.Array | pa.ChunkedArray] = [rows[name] for name in extra_names]
    for column in (*spec.key, *spec.values):
        name = was.get(column.lasting)
        columns.append(pa.nulls(rows.num_rows, column.arrow) if name is None else rows[name].cast(column.arrow))
    fields = [rows.schema.field(name) for name in extra_names]
    return pa.table(columns, schema=pa.schema([*fields, *spec.schema]))


def readable(old_spec: TableSpec, spec: TableSpec) -> bool:
    """Whether rows that were written for one form of a table can be read through the other."""
    return old_spec == spec or not differences(old_spec, spec)


def differences(old_spec: TableSpec, spec: TableSpec) -> list[str]:
    """Why rows of one form of a table cannot be read through the other, in words; empty where they can."""
    if old_spec.name != spec.name:
        return [f"table {spec.name} was {old_spec.name}"]
    if not _same_key(old_spec, spec):
        return [f"key {_key_text(old_spec)} -> {_key_text(spec)}"]
    if _expiry(old_spec) != _expiry(spec):
        return [f"expires by {old_spec.expiry} -> {spec.expiry}"]
    was = {column.lasting: column for column in old_spec.values}
    groups, before = _groups(spec), _groups(old_spec)
    reasons = []
    for column in spec.values:
        old = was.get(column.lasting)
        if old is None:
            continue
        if not widens(old.arrow, column.arrow):
            reasons.append(f"{column.name} {old.type} -> {column.type}")
        if old.combiner != column.combiner or before.get(column.lasting) != groups.get(column.lasting):
            reasons.append(f"{column.name} has another combiner")
    return reasons


def succeeding(old_spec: TableSpec, new_spec: TableSpec, old_names: Mapping[str, str], mark: str) -> TableSpec:
    """``new_spec`` as what follows ``old_spec``: columns that ``old_names`` has, each with its name there, keep their
    identity.

    All others are new, also where ``old_spec`` has or had one of that name: ``mark`` is a word that no other change
    of this table has used.
    """
    was = {column.name: column.lasting for column in (*old_spec.key, *old_spec.values)}

    def known(column: Column) -> Column:
        identity = was[old_names[column.name]] if old_names.get(column.name) in was else f"__{mark}.{column.name}"
        return msgspec.structs.replace(column, identity="" if identity == column.name else identity)

    key, values = (tuple(map(known, columns)) for columns in (new_spec.key, new_spec.values))
    return msgspec.structs.replace(new_spec, key=key, values=values)


def declared_table(spec: TableSpec) -> TableSpec:
    """The table as its operator declares it, whatever its columns were before."""

    def first(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(msgspec.structs.replace(column, identity="") for column in columns)

    return msgspec.structs.replace(spec, key=first(spec.key), values=first(spec.values))


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type is exactly one of the other, in the same order."""
    if old.equals(new):
        return True
    if pa.types.is_integer(old):
        return _takes_whole(old, new)
    if same_instants(old, new):
        return True
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(old.bit_width <= new.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        room = (new.precision - new.scale) - (old.precision - old.scale)
        return bool(new.scale >= old.scale and room >= 0 and new.bit_width >= old.bit_width)
    if pa.types.is_string(old) or pa.types.is_binary(old):
        return bool(new == (pa.large_string() if pa.types.is_string(old) else pa.large_binary()))
    if pa.types.is_list(old) and (pa.types.is_list(new) or pa.types.is_large_list(new)):
        return widens(old.value_type, new.value_type)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _widen_fields(old, new)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return widens(old.key_type, new.key_type) and widens(old.item_type, new.item_type)
    return False


def same_instants(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether both are instants of one unit, whatever their zones are called."""
    if not (pa.types.is_timestamp(old) and pa.types.is_timestamp(new)):
        return False
    return bool(old.unit == new.unit and old.tz is not None and new.tz is not None)


def _same_key(old_spec: TableSpec, spec: TableSpec) -> bool:
    """Whether keys are of the same columns, with types in which they have the same order and the same hash."""
    if [column.lasting for column in old_spec.key] != [column.lasting for column in spec.key]:
        return False
    return all(_keeps_hash(old.arrow, new.arrow) for old, new in zip(old_spec.key, spec.key, strict=True))


def _keeps_hash(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a value has one canonical text in both types: see `tidestate.statestore.spec.keyhash`."""
    same_text = not pa.types.is_decimal(new) or (pa.types.is_decimal(old) and old.scale == new.scale)
    return bool(same_text and widens(old, new))


def _takes_whole(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a type holds every whole number of ``old``."""
    bits = old.bit_width - pa.types.is_signed_integer(old)
    if pa.types.is_integer(new):
        is_signed = pa.types.is_signed_integer(new)
        return bool(bits <= new.bit_width - is_signed and (is_signed or pa.types.is_unsigned_integer(old)))
    if pa.types.is_floating(new):
        return bool(bits <= {16: 11, 32: 24, 64: 53}[new.bit_width])
    return bool(pa.types.is_decimal(new) and new.scale >= 0 and new.precision - new.scale >= len(str(2**bits)))


def _widen_fields(old: pa.StructType, new: pa.StructType) -> bool:
    pairs = [(old.field(index), new.field(index)) for index in range(min(old.num_fields, new.num_fields))]
    names_agree = old.num_fields == new.num_fields and all(
        old_field.name == new_field.name for old_field, new_field in pairs
    )
    return names_agree and all(widens(old_field.type, new_field.type) for old_field, new_field in pairs)


def _expiry(spec: TableSpec) -> str | None:
    return next((c.lasting for c in (*spec.key, *spec.values) if c.name == spec.expiry), None)


def _groups(spec: TableSpec) -> dict[str, tuple[object, ...]]:
    """Of each column that combines with others how it does, in identities."""
    identities = {column.name: column.lasting for column in spec.values}

    def facts(group: Group) -> tuple[object, ...]:
        members = tuple(identities[name] for name in group.columns)
        return (members, group.combiner, identities.get(group.by, ""), group.version, group.limit)

    return {identities[name]: facts(group) for group in spec.groups for name in group.columns}


def _key_text(spec: TableSpec) -> str:
    return ", ".join(f"{column.lasting} {column.type}" for column in spec.key)
