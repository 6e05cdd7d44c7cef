"""After a rewind a target gives back what was abandoned: then it has the panes of the checkpoints that count, each
once, whatever the job does next, or it was refused and nothing was changed.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.helpers.forked import forked
from tests.helpers.moves import fork, repair, rewind
from tests.helpers.process import LONG, longer
from tests.helpers.spark_inputs import job, sample
from tests.helpers.targets import CASES, Target, counting_panes, holds_all_once, plain_rows, target_of
from tests.servers.postgres import Postgres
from tests.servers.postgres import postgres as postgres
from tidestate.operators.sinks.forms import Form
from tidestate.operators.sinks.postgres import PostgresSink
from tidestate.operators.sinks.withdrawal import Withdrawal, execute_withdrawal, plan_withdrawal
from tidestate.operators.sinks.withdrawn_runs import WITHDRAWN, WithdrawnRun, delivery_of, noted_checkpoint
from tidestate.recovery.cli.main import app
from tidestate.recovery.log.checkpoint import Checkpoint, manifest_path
from tidestate.recovery.log.manifest import OutputKind
from tidestate.statestore.errors import ConflictError, UnavailableError, UsageError

pytestmark = pytest.mark.slow

BATCHES = sample(5, 60)
ID = "delivery"
TAKEN = [(kind, form) for kind, form in CASES if kind != "kafka" and form != "upsert"]
SHORT = [
    ("parquet", "append"),
    ("parquet_by_day", "append"),
    ("delta_by_day", "changelog"),
    pytest.param("iceberg", "append", marks=pytest.mark.long),
    pytest.param("postgres", "changelog", marks=pytest.mark.long),
]
"""In every run Iceberg gives rows back in `test_rows_of_before_the_column`, PostgreSQL where it is killed."""
TABLES = [case for case in TAKEN if not case[0].startswith("parquet")]


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    place = f"{request.getfixturevalue('postgres').uri}#{uuid.uuid4().hex}" if kind == "postgres" else tmp_path / "t"
    return target_of(f"{kind}:{place}")


def run(root: Path, sink: Any, batches: int = len(BATCHES), **more: Any) -> None:
    job().standalone(checkpoint=root, sink=sink).run(BATCHES[:batches], **more)


def withdraw(root: Path, sink: Any) -> Withdrawal:
    planned = plan_withdrawal(Checkpoint.open(root), sink)
    execute_withdrawal(Checkpoint.open(root), sink, planned)
    return planned


def abandoned(root: Path, to: int = 3, kind: OutputKind = "panes") -> list[int]:
    """Go back; the checkpoints with output that are abandoned by now."""
    rewind(Checkpoint.open(root), to)
    checkpoint = Checkpoint.open(root)
    head = checkpoint.chosen(None).manifest
    made = [checkpoint.read(number).manifest for number in checkpoint.ids() if head.abandons(number)]
    return [manifest.id for manifest in made if manifest.output(kind)]


def assert_counting(target: Target, root: Path) -> None:
    """Of rows without ids, and of the form append."""
    stored, panes = target.table(), counting_panes(root)
    assert Counter(plain_rows(stored, panes.column_names)) == Counter(plain_rows(panes, panes.column_names))


def rows(target: Target) -> Counter[str]:
    return Counter(map(str, target.table().to_pylist()))


@pytest.mark.parametrize(("kind", "form"), TAKEN if LONG else SHORT)
def test_the_target_has_what_counts(kind: str, form: Form, target: Target, tmp_path: Path) -> None:
    """At once, when the job has gone on, after a second rewind, and after one that takes a rewind back."""
    root, sink = tmp_path / "root", target.sink(form, delivery_column=ID)
    run(root, sink, 3)
    run(root, sink, 4)
    gone = abandoned(root)
    planned = withdraw(root, sink)
    assert [one.checkpoint for one in planned.deliveries] == gone != []
    assert len({one.delivery.rpartition("-")[0] for one in planned.deliveries}) == 2, "of two runs"
    assert all(one.rows for one in planned.deliveries)
    counting = Checkpoint.open(root).outputs()
    assert planned.stays == sum(bool(output.panes) for output in counting)
    assert not withdraw(root, sink).deliveries, "twice is once"
    run(root, sink)
    holds_all_once(target, form, root, ID)
    number = Checkpoint.open(root).chosen(None).manifest.id
    assert abandoned(root, number - 1)
    withdraw(root, sink)
    rewind(Checkpoint.open(root), number)  # what was withdrawn counts again
    assert not withdraw(root, sink).deliveries
    run(root, sink, drain=True)
    holds_all_once(target, form, root, ID)


@pytest.mark.parametrize(
    ("kind", "form"), [("parquet", "changelog"), pytest.param("delta", "append", marks=pytest.mark.long)]
)
def test_it_may_come_when_the_job_has_gone_on(form: Form, target: Target, tmp_path: Path) -> None:
    root, sink = tmp_path / "root", target.sink(form, delivery_column=ID)
    run(root, sink, 4)
    gone = abandoned(root)
    run(root, sink, drain=True)
    assert [one.checkpoint for one in withdraw(root, sink).deliveries] == gone
    holds_all_once(target, form, root, ID)


KILLED = [
    ("parquet", False),
    ("parquet_by_day", True),
    pytest.param("delta", False, marks=pytest.mark.long),
    pytest.param("postgres", False, marks=pytest.mark.long),
]


KILLED_IN_LONG = [
    pytest.param("iceberg", False, marks=pytest.mark.long),
    pytest.param("delta_by_day", True, marks=pytest.mark.long),
    pytest.param("iceberg_by_day", True, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "undone"), [*KILLED, *KILLED_IN_LONG])
def test_killed_in_the_middle(kind: str, undone: bool, target: Target, tmp_path: Path) -> None:
    """Again is once; and what counts again, as the rewind itself is taken back, is there again."""
    root, sink, form = tmp_path / "root", target.sink(delivery_column=ID), "append"
    run(root, sink, 4)
    gone, before = abandoned(root), rows(target)
    assert forked("tests.children.withdrawing", f"{kind}:{target.place}", form, root) == -signal.SIGKILL
    assert (rows(target) == before) is not kind.startswith("parquet")
    if undone:
        rewind(Checkpoint.open(root), gone[-1])
    withdraw(root, sink)
    run(root, sink, drain=True)
    holds_all_once(target, form, root, ID)


COLUMN = {"delivery_column": ID}
REFUSED: list[tuple[str, Form, dict[str, str], str]] = [
    *((kind, form, {}, "delivery_column=.*withdraw-column") for kind, form in TABLES),
    *((kind, form, COLUMN, "start the job.*withdraw-form") for kind, form in CASES if form == "upsert"),
    *(("kafka", form, COLUMN, "new topic.*withdraw-form") for form in ("append", "changelog")),
]


@pytest.fixture(scope="module")
def rewound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root without a sink, of which something is abandoned."""
    root = tmp_path_factory.mktemp("rewound") / "root"
    run(root, None, 3)
    abandoned(root)
    return root


@pytest.mark.parametrize(("kind", "form", "more", "code"), REFUSED)
def test_what_cannot_be_exact_is_refused(
    kind: str, form: Form, more: dict[str, str], code: str, rewound: Path, tmp_path: Path
) -> None:
    place = "postgresql://nowhere#t" if kind == "postgres" else "nowhere#t" if kind == "kafka" else tmp_path / "t"
    sink = target_of(f"{kind}:{place}").sink(form, **more)
    with pytest.raises(UsageError, match=code):
        plan_withdrawal(Checkpoint.open(rewound), sink)


def test_a_sink_of_ones_own_is_refused(rewound: Path) -> None:
    with pytest.raises(UsageError, match="withdraw-sink"):
        plan_withdrawal(Checkpoint.open(rewound), print)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_nothing_is_there_yet(target: Target, rewound: Path) -> None:
    planned = withdraw(rewound, target.sink(delivery_column=ID))
    assert (planned.deliveries, planned.stays, planned.without_id) == ((), 0, 0)


@pytest.mark.parametrize(
    ("kind", "merged"),
    [
        pytest.param("delta", False, marks=pytest.mark.long),
        pytest.param("delta", True, marks=pytest.mark.long),
        pytest.param("iceberg", True, marks=pytest.mark.long),
        pytest.param("postgres", False, marks=pytest.mark.long),
    ],
)
def test_rows_of_before_the_column(kind: str, target: Target, merged: bool, tmp_path: Path) -> None:
    """Those that count stay; those that were abandoned are not known."""
    root = tmp_path / "root"
    run(root, target.sink(), 3)
    sink = target.sink(delivery_column=ID, schema="merge")
    if merged:
        run(root, sink, 4)
    gone, before = abandoned(root, 4), rows(target)
    if merged:
        found = withdraw(root, sink)
        assert ([one.checkpoint for one in found.deliveries], found.without_id > 20) == (gone, True)
        run(root, sink, drain=True)
        assert_counting(target, root)
        before = rows(target)
    abandoned(root, 3)
    with pytest.raises(UsageError, match=r"withdraw-unclear.*checkpoints=\[4\]"):
        withdraw(root, sink)
    assert rows(target) == before


def test_a_target_that_is_down(rewound: Path) -> None:
    with pytest.raises(UnavailableError, match="sink-refuses"):
        plan_withdrawal(
            Checkpoint.open(rewound), PostgresSink("postgresql://127.0.0.1:1/d", "t", changes="append", **COLUMN)
        )


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints a plan until it is confirmed."""
    root, target = tmp_path / "root", target_of(f"parquet:{tmp_path / 't'}")
    run(root, target.sink(), 3)
    module = f"sinks_{uuid.uuid4().hex}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text(
        f"from tidestate.sinks import ParquetSink\nsink = ParquetSink({target.place!r})\n"
        "def made():\n    return sink\n"
        "def broken():\n    raise ValueError('no password')\ndef other():\n    return print\n"
    )

    def command(name: str, *options: str) -> Result:
        return CliRunner().invoke(app, ["withdraw", str(root), f"{module}:{name}", *options])

    gone, before = abandoned(root), rows(target)
    planned = json.loads(command("sink", "--json").stdout)
    assert [one["checkpoint"] for one in planned["deliveries"]] == gone
    assert (planned["done"], planned["stays"], planned["unknown"], planned["without_id"]) == (False, 2, 0, 0)
    dry = command("made").stdout
    assert "to remove" in dry
    assert "dry run" in dry
    for name in ("broken", "other"):
        assert "withdraw-sink" in str(command(name, "--confirm").exception)
    assert rows(target) == before
    assert f"1 delivery of checkpoint {gone[0]}, " in command("made", "--confirm").stdout
    again = json.loads(command("sink", "--json", "--confirm").stdout)
    assert (again["done"], again["deliveries"]) == (True, [])


def test_a_table_of_delta_says_to_tablesink_and_hears_from_it(tmp_path: Path) -> None:
    """Spark shows no transactions: a note says what was withdrawn, a property that the run has another name."""
    root, target = tmp_path / "root", target_of(f"delta:{tmp_path / 't'}")
    sink = target.sink(delivery_column=ID)
    run(root, sink, 4)
    (first, *_) = abandoned(root)
    (delivery, *_) = (delivery_of(one.delivery) for one in withdraw(root, sink).deliveries)
    assert delivery is not None
    table = deltalake.DeltaTable(target.place)
    assert noted_checkpoint(table.history(1)[0]["userMetadata"], delivery.run, delivery.run) == first - 1
    properties = {f"{WITHDRAWN}{delivery.run}": WithdrawnRun("other", delivery.run, 2, ID).as_text()}
    table.alter.set_table_properties(properties, raise_if_not_exists=False)
    with pytest.raises(UsageError, match=r"go on with TableSink.*sink-target"):
        sink.last(delivery.run)
    with pytest.raises(UsageError, match=r"go on with TableSink.*sink-target"):
        sink(target.table(), delivery)
    assert sink.last("of another job") == 0


# In every run: rows of before the column are unclear, and of another job unknown.
@pytest.mark.long
def test_who_has_removed_them_by_hand_goes_on(postgres: Postgres, tmp_path: Path) -> None:
    root, target = tmp_path / "root", target_of(f"postgres:{postgres.uri}#by_hand")
    run(root, target.sink(), 2)
    postgres.run("CREATE TABLE counting AS SELECT * FROM by_hand")
    run(root, target.sink(), 3)
    sink, _ = target.sink(delivery_column=ID), abandoned(root)
    with pytest.raises(UsageError, match="withdraw-unclear"):
        withdraw(root, sink)
    postgres.run("TRUNCATE by_hand; INSERT INTO by_hand SELECT * FROM counting")
    postgres.run(f"ALTER TABLE by_hand ADD COLUMN {ID} text; UPDATE by_hand SET {ID} = 'before'")
    assert withdraw(root, sink).unknown == 1
    run(root, sink, drain=True)
    assert_counting(target, root)


@pytest.mark.parametrize("kind", ["parquet"])
def test_a_job_that_runs_is_left_alone(target: Target, tmp_path: Path) -> None:
    root, sink = tmp_path / "root", target.sink()
    run(root, sink, 3)
    abandoned(root)
    before, planned = rows(target), plan_withdrawal(Checkpoint.open(root), sink)
    running = job().standalone(checkpoint=root).stream(BATCHES)
    next(iter(running))
    with pytest.raises(UsageError, match=r"running.*stop it, or wait"):
        execute_withdrawal(Checkpoint.open(root), sink, planned)
    running.close()  # type: ignore[attr-defined]
    with pytest.raises(ConflictError, match="plan-moved"):
        execute_withdrawal(Checkpoint.open(root), sink, planned)
    assert rows(target) == before


@pytest.mark.parametrize("kind", ["parquet", *longer("postgres")])
def test_late_rows_too(target: Target, tmp_path: Path) -> None:
    root, sink = tmp_path / "root", target.sink(delivery_column=ID)
    job().standalone(checkpoint=root, late_sink=sink).run(BATCHES[:4])
    gone = abandoned(root, kind="late")
    assert [one.checkpoint for one in withdraw(root, sink).deliveries] == gone != []
    job().standalone(checkpoint=root, late_sink=sink).run(BATCHES)
    ledgers = [pair for output in Checkpoint.open(root).outputs() for pair in output.ledgers.items()]
    stored = Counter(target.table()[ID].to_pylist())
    assert stored == {str(delivery): sum(ref.rows for ref in refs) for delivery, refs in ledgers}


@pytest.mark.parametrize("kind", ["parquet"])
def test_what_is_of_another_job_stays(target: Target, tmp_path: Path) -> None:
    """A fork has the numbers of its root, and its own runs."""
    root, sink = tmp_path / "root", target.sink()
    run(root, sink, 3)
    fork(root, tmp_path / "fork", 3)
    run(tmp_path / "fork", sink, 5)
    gone = abandoned(root)
    planned = withdraw(root, sink)
    assert [one.checkpoint for one in planned.deliveries] == gone
    assert planned.unknown > 1
    assert not withdraw(tmp_path / "fork", sink).deliveries


@pytest.mark.parametrize("kind", ["parquet"])
def test_checkpoints_whose_manifests_are_gone(target: Target, tmp_path: Path) -> None:
    """Their run is known by those that are left."""
    root, sink = tmp_path / "root", target.sink()
    run(root, sink, 4)
    (root / manifest_path(5)).unlink()
    repair(Checkpoint.open(root))
    assert [one.checkpoint for one in withdraw(root, sink).deliveries] == [5]
    run(root, sink, drain=True)
    holds_all_once(target, "append", root)
