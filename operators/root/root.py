"""One object for everything that can be read from a checkpoint root, and done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from tidestate.operators.bind.stored_description import stored_windows
from tidestate.operators.inspect.history.bounds import BoundUnit
from tidestate.operators.inspect.history.window_history import key_columns
from tidestate.operators.inspect.report.document import LAST, WrittenReport, write_report
from tidestate.operators.inspect.window_changes import difference_of
from tidestate.operators.root.adoption import AdoptionPlan
from tidestate.operators.root.jobs import described_job, streams_of_job
from tidestate.operators.root.past_files import BootstrapPlan, files_of_streams
from tidestate.operators.root.readers import RootReaders
from tidestate.operators.root.rows import AnsweredRows
from tidestate.operators.root.texts import bound_text, key_texts
from tidestate.operators.root.verbs import RootVerbs
from tidestate.operators.root.windows import RootWindows
from tidestate.recovery.inspect.rows import Wanted, operator_of
from tidestate.recovery.log.moments import check_moment
from tidestate.recovery.log.summary import brief
from tidestate.statestore.arguments import checked
from tidestate.statestore.durations import Moment
from tidestate.statestore.errors import TidestateError
from tidestate.statestore.html_tables import facts_html
from tidestate.statestore.roots import checked_root
from tidestate.statestore.secrets import public_url
from tidestate.statestore.storage.dialects.table import canonical_url
from tidestate.statestore.storage.local import is_local, local_path
from tidestate.statestore.storage.options import root_with_options


@dataclass(frozen=True, repr=False, init=False)
class Root(RootReaders, RootVerbs, RootWindows):
    """The checkpoint root of a job, a path or URL. Nothing is opened before one of its methods is called, and each
    sees the root as it is then.

    Readers return rows that are not read yet, ``.at(…)`` lets them read as of a checkpoint. What changes a root
    returns a plan: it prints itself, and does nothing before its ``.execute()``.
    """

    def __init__(self, root: str | PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """``storage_options`` are fsspec's for a root in remote storage, such as credentials. They go along
        with it to tasks that read it, whatever is given to another one later, and are written nowhere.
        """
        object.__setattr__(self, "url", root_with_options(root, storage_options))
        object.__setattr__(self, "moment", None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Root):
            return NotImplemented
        return (self._place(), self.moment) == (other._place(), other.moment)

    def __hash__(self) -> int:
        return hash((self._place(), self.moment))

    def _place(self) -> str:
        """One spelling for each place: two roots are equal if they read the same files, as things are now."""
        if is_local(self.url):
            return str(PurePath(local_path(self.url)))
        return canonical_url(self.url)

    @checked
    def at(self, checkpoint: Moment) -> Root:
        """The same root as of a checkpoint, by its id, a whole number, or a time, for the newest created by then:
        what counted then, whatever a rewind has abandoned since. What is of the whole root refuses (``root-at``).
        """
        check_moment(checkpoint)
        root = Root(self.url)
        object.__setattr__(root, "moment", checkpoint)
        return root

    @checked
    def diff(
        self,
        before: int,
        after: int,
        *,
        operator: str | None = None,
        table: str | None = None,
        key: Any = None,
        window: Moment | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AnsweredRows:
        """The windows that differ between two checkpoints: bounds, key, and each value before and after. Of an
        operator without windows, and with ``table``, rows of a state table. ``key`` as of `history`; ``window``: only
        those that start or end then; ``since``, ``until``: only those that end then or later, and before.
        """
        checkpoint = self._whole("diff(…)")
        _, state = operator_of(checkpoint.read(after).manifest, operator)
        is_time = BoundUnit.of(stored_windows(state)).is_time
        bounds = [bound_text(moment, is_time=is_time) for moment in (window, since, until)]
        selection = Wanted(key_texts(key, key_columns(state)), *bounds)
        difference = difference_of(checkpoint, before, after, selection, operator, table)
        next(difference.parts())  # what is wrong with the question is an error of this call
        title = f"what differs between checkpoints {before} and {after}"
        return AnsweredRows(title, difference.whole, difference.parts)

    @checked
    def report(
        self, output: str | PathLike[str] = "report.html", *, last: int = LAST, read_data: float = 0.0
    ) -> WrittenReport:
        """Write an HTML report about the root and its ``last`` checkpoints: damage, progress, watermarks, late
        events, state, windows. It replaces an earlier report, but no other file. Needs the extra ``report``.
        """
        self._check_whole("report(…)")
        return write_report(self.url, checked_root(output), last=last, read_percent=read_data)

    @checked
    def adopt(
        self,
        spark_checkpoint: str | PathLike[str],
        job: object,
        *,
        schema: pa.Schema | str | None = None,
        buffers: Mapping[str, int] | None = None,
        partitions: int | None = None,
        deliver: bool = True,
    ) -> AdoptionPlan:
        """Make this root, which is new, with the state, watermark and offsets of a stopped query of Spark's own,
        whose checkpointLocation is never changed. ``job`` goes on exactly there.

        ``schema``: the columns of its stream, as text too; by default those of the file that was read last.
        ``buffers``: the first column of an aggregate in Spark's state, where several fit. Without ``deliver`` early
        panes are recorded and not delivered. Needs Spark 4.0: the session of this process, or a local one.
        """
        self._check_whole("adopt(…)")
        location = checked_root(spark_checkpoint)
        return AdoptionPlan.of(location, self.url, described_job(job), schema, buffers, partitions, deliver=deliver)

    @checked
    def bootstrap(
        self,
        job: object,
        files: Any,
        *,
        offsets: Any = None,
        schema: pa.Schema | str | None = None,
        partitions: int | None = None,
        standalone: bool = False,
        deliver: bool = True,
    ) -> BootstrapPlan:
        """Make this root, which is new, with the state that results from files of past events, read in this process.

        ``files``: names, folders or patterns, by stream where there are several. Spark's query then reads all other
        files, or goes on from ``offsets``, by stream too; with ``standalone`` that runner goes on. Past events as
        tables and DataFrames: ``bootstrap`` of a job.
        """
        self._check_whole("bootstrap(…)")
        streams = streams_of_job(job)
        names = files_of_streams(streams.by_user, files)
        return BootstrapPlan.of(
            streams.description, self.url, names, offsets, schema, partitions, standalone=standalone, deliver=deliver
        )

    def __repr__(self) -> str:
        as_of = "" if self.moment is None else f".at({self.moment!r})"
        return f"Root({public_url(self.url)!r}){as_of}"

    def _repr_html_(self) -> str | None:
        """Its newest checkpoint as a table, for a notebook; none while there is none to read."""
        try:
            return facts_html(repr(self), brief(self.manifest()))
        except TidestateError:
            return None
