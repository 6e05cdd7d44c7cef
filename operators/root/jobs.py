"""A job, in whatever form a user has it: its description, and the names of its streams."""

from __future__ import annotations

from tidestate.operators.describe.job_streams import JobStreams
from tidestate.operators.describe.runnable import Runnable
from tidestate.operators.streams.of_graph import OfGraph
from tidestate.statestore.errors import UsageError


def streams_of_job(job: object) -> JobStreams:
    """The streams of ``job`` by the names that its user knows. Raises `UsageError` as `described_job`."""
    names = job.graph.streams if isinstance(job, OfGraph) else getattr(job, "names", None)
    return JobStreams(described_job(job), names)


def described_job(job: object) -> Runnable:
    """The description of ``job``: a stream, or what runs one. Raises `UsageError` for what has none."""
    if isinstance(job, Runnable):
        return job
    if isinstance(job, OfGraph):
        return job.graph.description
    description = getattr(job, "description", None)
    if isinstance(description, Runnable):
        return description
    raise UsageError(
        "a job must be what a verb such as stream(…).deduplicate(…) returned, or what runs it: job=per_hour",
        code="argument",
        parameter="job",
        found=f"{job!r:.100} ({type(job).__name__})",
    )
