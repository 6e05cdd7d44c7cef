"""A job on Spark whose root is reached by options given in Python: ``python -m tests.children.s3_options INPUT ROOT
ENDPOINT SECRET``, without credentials in the environment. It prints how many panes its root has.
"""

from __future__ import annotations

import sys

from tests.helpers.spark_inputs import SCHEMA, job
from tests.servers.packages import INTERPRETED, S3A, WITHOUT_BUNDLE
from tidestate.operators import Root
from tools.demo.job import say
from tools.java import local_session


def main(folder: str, root: str, endpoint: str, secret: str) -> None:
    """Run to the end of the input; tasks of each batch read and write the root."""
    s3a = {"path.style.access": "true", "endpoint": endpoint, "endpoint.region": "us-east-1"}
    s3a |= {"access.key": "testing", "secret.key": secret}
    spark = local_session(
        "options",
        **{"spark.jars.packages": ",".join(S3A), "spark.jars.excludes": WITHOUT_BUNDLE},
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()},
        **INTERPRETED,
    )
    options = {"endpoint_url": endpoint, "key": "testing", "secret": secret}
    options["client_kwargs"] = {"region_name": "us-east-1"}  # type: ignore[assignment]
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    started = job().on_spark(stream, checkpoint=root, partitions=2, paths=(), storage_options=options)
    query = started.start()
    query.processAllAvailable()
    query.stop(drain=True)
    shown = [text for text in (str(query), repr(query), repr(started)) if secret in text]
    say("done", panes=Root(root).panes().to_table().num_rows, shown=shown)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
