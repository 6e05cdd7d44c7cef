"""What to write in place of a method that a stream does not have, for those who come from DataFrames. Pure."""

from __future__ import annotations

_BEFORE = "filter and compute columns of the DataFrame or tables that the job is given"
_RUNS = "an operator runs, not an input: .group_by(…).window(…).aggregate(…) first, or another verb"
_INSTEAD = {
    **dict.fromkeys(("count", "sum", "min", "max", "avg", "mean"), "results are named: .aggregate(n=agg.count())"),
    "run": ".standalone(checkpoint=…).run(batches), on Spark .on_spark(…, checkpoint=…).start()",
    "groupBy": ".group_by(…)",
    "groupby": ".group_by(…)",
    "agg": ".group_by(…).window(…).aggregate(…)",
    "aggregate": ".group_by(…).window(…).aggregate(…), and .sharing(…) and .watermark(…) come before .group_by(…)",
    "withWatermark": 'stream(event_time="…", watermark_delay="…")',
    "dropDuplicates": ".deduplicate(…, within=…)",
    "dropDuplicatesWithinWatermark": ".deduplicate(…, within=…)",
    "unionByName": "union(…) of the package",
    "union": "union(…) of the package",
    "merge": "merge(…) of the package",
    **dict.fromkeys(("filter", "where", "select", "withColumn", "withColumnRenamed", "drop"), _BEFORE),
    **dict.fromkeys(("writeStream", "start"), ".on_spark(…, checkpoint=…).start() of an operator"),
    **dict.fromkeys(("on_spark", "standalone", "harness", "by_hand", "plan", "explain"), _RUNS),
    **dict.fromkeys(("sharing", "watermark"), "say it before .group_by(…)"),
}


def no_method(kind: str, name: str) -> AttributeError:
    """The error of a method ``name`` that the class ``kind`` does not have, with what there is in its place."""
    message = f"{kind!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {_INSTEAD[name]}" if name in _INSTEAD else message)
