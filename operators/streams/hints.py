"""What to write in place of a method that a stream does not have, for those who come from DataFrames. Pure."""

from __future__ import annotations

_BEFORE = "filter and compute columns before .group_by(…), or of the results: .aggregate(…).where(…)"
_RUNS = "only an operator can run, not an input: call .group_by(…).window(…).aggregate(…) or another verb first"
_INSTEAD = {
    **dict.fromkeys(
        ("count", "sum", "min", "max", "avg", "mean"), "give each result a name: .aggregate(n=agg.count())"
    ),
    "run": ".standalone(checkpoint=…).run(batches), on Spark .on_spark(…, checkpoint=…).start()",
    "groupBy": ".group_by(…)",
    "groupby": ".group_by(…)",
    "agg": ".group_by(…).window(…).aggregate(…)",
    "aggregate": ".group_by(…).window(…).aggregate(…), and .sharing(…) and .watermark(…) come before .group_by(…)",
    "withWatermark": 'stream(event_time="…", watermark_delay="…")',
    "dropDuplicates": ".deduplicate(…, within=…)",
    "dropDuplicatesWithinWatermark": ".deduplicate(…, within=…)",
    "unionByName": "use the function union(…)",
    "union": "use the function union(…)",
    "merge": "use the function merge(…)",
    **dict.fromkeys(("where", "with_columns", "select", "expect", "expect_all"), _BEFORE),
    "having": "after .aggregate(…) of windows; the rows of joins, unions and deduplications are chosen by .where(…)",
    "derive": "after .aggregate(…) of windows; the rows of all others get columns by .with_columns(…)",
    "filter": ".where(…)",
    **dict.fromkeys(("withColumn", "withColumns"), '.with_columns(total=col("price") * col("qty"))'),
    "withColumnRenamed": '.select(…, new=col("old"))',
    "drop": ".select(…), with the columns that stay",
    **dict.fromkeys(("writeStream", "start"), "call .on_spark(…, checkpoint=…).start() on an operator"),
    **dict.fromkeys(("on_spark", "standalone", "harness", "by_hand", "plan", "explain"), _RUNS),
    **dict.fromkeys(("sharing", "watermark"), "call it before .group_by(…)"),
}


def no_method(kind: str, name: str) -> AttributeError:
    """The error of a method ``name`` that the class ``kind`` does not have, with what there is in its place."""
    message = f"{kind!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {_INSTEAD[name]}" if name in _INSTEAD else message)
