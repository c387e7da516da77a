"""Runs a job with the engine that its settings name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from precede.ingest.service.running import Announcer, Say
from precede.streaming.job.job import Job
from precede.streaming.job.settings import Settings
from precede.udfs.errors import PrecedeError, Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from pyspark.sql import SparkSession


def print_at_once(sentence: str) -> None:
    """Print a line without buffering."""
    print(sentence, flush=True)  # noqa: T201 (this is what the job is asked to do)


def run(
    settings: Settings,
    *,
    say: Say = print_at_once,
    spark: "SparkSession | None" = None,
    key: "Ed25519PrivateKey | None" = None,
    makes_topics: bool = False,
) -> None:
    """Run until everything is done or the job is stopped; raises Refused for problems that a person must fix.

    A session that is given is used and left running. With a service key the job signs the records it writes itself.
    With `makes_topics` it creates the topics that are absent; without, they are refused.
    """
    announcer = Announcer(say, settings.log_format)
    try:
        with _failing_places_refused():
            _job(settings, announcer, spark, key).run(makes_topics=makes_topics)
    except PrecedeError as refusal:
        announcer.refused(refusal)
        raise


@contextmanager
def _failing_places_refused() -> Iterator[None]:
    """A disk or a store that fails while the job starts ends it with a sentence that names the place."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        raise Refused(
            f"{error.filename} cannot be used: {error.strerror}. Nothing is lost; start the job again when it works."
        ) from error


def _job(settings: Settings, say: Announcer, spark: "SparkSession | None", key: "Ed25519PrivateKey | None") -> Job:
    """The job of the engine; only Spark writes history, whatever the setting says."""
    if settings.runs_without_spark:
        from precede.streaming.engines.process import ProcessJob

        return ProcessJob(settings, say, key)
    from precede.streaming.engines.spark import SparkJob

    return SparkJob(settings, say, key, spark)
