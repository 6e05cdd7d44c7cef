"""The forms of `tidestate.operators.sinks.forms` as queries of Spark's SQL, for rows that never pass through the
driver. Pure: each makes a DataFrame that nobody has read yet.

The rows of one identity are in one file, in the order in which they count, so the file and the place in it order
them. Spark tells both of a DataFrame that reads files, as the job hands it to its sinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidestate.operators.plan.plan import PANE_KIND
from tidestate.operators.sinks.forms import KIND_OF_CHANGE, PANE_NUMBER, Form
from tidestate.operators.sinks.stored_columns import StoredColumns, quoted_in_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GONE = "__tidestate_gone"
"""The column of rows to upsert that says which of them are to go."""
_FILE, _PLACE = "__tidestate_file", "__tidestate_place"
_BEFORE, _AFTER, _RETRACTED = "__tidestate_before", "__tidestate_after", "__tidestate_retracted"


def formed_in_spark(
    rows: DataFrame, form: Form, by: Sequence[str], columns: StoredColumns, delivery: str, *, is_plain: bool = False
) -> DataFrame:
    """``rows`` of a delivery in this form and in ``columns``; for an upsert with the column `GONE`. ``by`` is their
    identity, which must not be null; ``is_plain`` as of `tidestate.operators.sinks.forms.formed`.
    """
    if form == "append":
        return rows.selectExpr(*columns.expressions(delivery))
    of_panes = set() if is_plain else {PANE_KIND, PANE_NUMBER} & {*rows.columns}
    kept = [quoted_in_spark(name) for name in rows.columns if name not in of_panes - {PANE_NUMBER}]
    retracted = f"{quoted_in_spark(PANE_KIND)} = 'retract'" if PANE_KIND in of_panes else "false"
    ordered = rows.selectExpr(
        *map(quoted_in_spark, rows.columns),
        f"_metadata.file_path AS {_FILE}",
        f"_metadata.row_index AS {_PLACE}",
        f"{retracted} AS {_RETRACTED}",
    )
    identity = ", ".join(map(quoted_in_spark, by))
    if form == "upsert":
        newest = f"row_number() OVER (PARTITION BY {identity} ORDER BY {_FILE} DESC, {_PLACE} DESC) AS {_AFTER}"
        net = ordered.selectExpr("*", newest).filter(f"{_AFTER} = 1")
        chosen = columns.expressions(delivery)
        return net.selectExpr(*kept, f"{_RETRACTED} AS {GONE}").selectExpr(
            *chosen, *([GONE] if columns.names is not None else [])
        )
    window = f"OVER (PARTITION BY {identity} ORDER BY {_FILE}, {_PLACE})"
    neighbours = ordered.selectExpr(
        "*", f"lag({_RETRACTED}) {window} AS {_BEFORE}", f"lead({_RETRACTED}) {window} AS {_AFTER}"
    )
    later = f"{quoted_in_spark(PANE_NUMBER)} > 0" if PANE_NUMBER in of_panes else "false"
    change = (
        f"CASE WHEN {_RETRACTED} AND {_AFTER} = false THEN 'update_before' WHEN {_RETRACTED} THEN 'delete' "
        f"WHEN {_BEFORE} = true OR {later} THEN 'update_after' ELSE 'insert' END AS {KIND_OF_CHANGE}"
    )
    return neighbours.selectExpr(*kept, change).selectExpr(*columns.expressions(delivery))


def has_null(rows: DataFrame, by: Sequence[str]) -> bool:
    """Whether a column that identifies rows is null in some; reads these columns."""
    return bool(by) and not rows.filter(" OR ".join(f"{quoted_in_spark(name)} IS NULL" for name in by)).isEmpty()
