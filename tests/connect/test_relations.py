"""Plans of a client as messages: which may be passed on to another process."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="PySpark asks for it before it shows the messages")

from pyspark.sql.connect.proto import CommonInlineUserDefinedFunction, Expression, Filter, Range, Relation

from tidestate.operators.spark.connect.relations import unpacked
from tidestate.statestore.errors import UsageError


def test_a_plan_in_a_root_brings_no_code_along() -> None:
    """Whoever can write to a root could else let the job run it."""
    function = CommonInlineUserDefinedFunction(function_name="evil")
    function.python_udf.command = b"a pickle"
    condition = Expression(common_inline_user_defined_function=function)
    plan = Relation(filter=Filter(input=Relation(range=Range(end=3, step=1)), condition=condition))
    with pytest.raises(UsageError) as caught:
        unpacked(None, plan.SerializeToString())  # type: ignore[arg-type]
    assert caught.value.code == "rows-with-code"
