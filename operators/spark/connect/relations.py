"""Plans of a client of Spark Connect as messages of its protocol: what is read, twice or from another process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidestate.statestore.errors import UsageError

_USER_CODE = (
    "CommonInlineUserDefinedFunction",
    "CommonInlineUserDefinedTableFunction",
    "CommonInlineUserDefinedDataSource",
)
"""Messages that contain pickled code of the user's."""


def relation_of(frame: DataFrame) -> Any:
    """The plan of a DataFrame, as a message of the protocol."""
    return frame._plan.to_proto(frame._session.client).root


def frame_of_relation(session: SparkSession, relation: Any) -> DataFrame:
    """The DataFrame of a plan that is such a message."""
    from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
    from pyspark.sql.connect.plan import LogicalPlan

    class Given(LogicalPlan):  # type: ignore[misc]  # pyspark has no types here
        """A plan that is there as a message."""

        def plan(self, _session: Any) -> Any:
            return relation

    return ConnectFrame(Given(None), session)


def packed(frame: DataFrame) -> bytes:
    """The plan of a batch DataFrame, for another process of the same session. Raises `UsageError`
    (``rows-with-code``) where it has code of the user's, which no process takes from a root.
    """
    relation = relation_of(frame)
    _check_no_code(relation)
    return bytes(relation.SerializeToString())


def unpacked(session: SparkSession, plan: bytes) -> DataFrame:
    """The DataFrame of a plan that `packed` has made. Raises as that: whoever writes to a root can write a plan."""
    from pyspark.sql.connect.proto import Relation

    relation = Relation()
    relation.ParseFromString(plan)
    _check_no_code(relation)
    return frame_of_relation(session, relation)


def _check_no_code(relation: Any) -> None:
    if any(message.DESCRIPTOR.name in _USER_CODE for message in _messages(relation)):
        raise UsageError(
            "these rows are made by a Python function, which is not passed on to the job: write them to files, and "
            "give the files",
            code="rows-with-code",
        )


def separated(frame: DataFrame) -> DataFrame:
    """The stream with a source for each place that reads one: a server gives equal relations one source, so each
    further place has an option of ours, which no source knows.
    """
    relation, reads = relation_of(frame), set[bytes]()
    changed = False
    for message in _messages(relation):
        if message.DESCRIPTOR.name != "Read" or not message.is_streaming:
            continue
        read = message.data_source if message.HasField("data_source") else message.named_table
        # The server keeps analysed plans by their bytes, the ids of nodes among them: equal bytes are one source.
        while (read_bytes := message.SerializeToString(deterministic=True)) in reads:
            read.options["tidestate.source"] = str(len(reads) + 1)
            changed = True
        reads.add(read_bytes)
    return frame_of_relation(frame.sparkSession, relation) if changed else frame


def _messages(message: Any) -> Iterator[Any]:
    """A message and all that are in it, in the order of their fields."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in (value,) if hasattr(value, "ListFields") else value:  # a list has no fields
            yield from _messages(inner)
