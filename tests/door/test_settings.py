"""Settings: which source overrides which, and a sentence for each invalid value."""

from pathlib import Path
from typing import Any

import pytest

from precede.ingest.kafka import topics
from precede.ingest.service.running import reason_of
from precede.streaming import settings
from precede.streaming.monitoring.query_keeper import REFUSED, refusal_in
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
from precede.udfs.limits import Patience


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "precede.toml"
    path.write_text('order = "fifo"\nshards = 7\nraw_topic = "file.raw"\n\n[limits]\nwindow = 50\n')
    return path


def test_a_flag_stands_over_a_variable_over_the_file_over_the_default(config: Path) -> None:
    found = settings.load({"order": "total", "shards": None}, {"PRECEDE_SHARDS": "9", "PRECEDE_ORDER": "s_b"}, config)
    assert (found.order, found.shards, found.raw_topic) == ("total", 9, "file.raw")
    assert (found.ordered_topic, found.limits.window, found.limits.after_max) == ("precede.ordered", 50, 20)


def test_nothing_given_is_the_default() -> None:
    assert settings.load({}, {"PATH": "/bin", "PRECEDE_SHARDS": "", "PRECEDE_SOMETHING_ELSE": "1"}) == Settings()


def test_a_variable_that_is_nearly_one_of_ours_is_told_and_one_that_is_not_is_left_alone() -> None:
    slips = settings.likely_slips(
        {"PRECEDE_SHARD": "9", "PRECEDE_BOOTSTRAPS": "a:1", "PRECEDE_DEBUG": "1", "PRECEDE_SERVICE_HOST": "x", "A": ""}
    )
    assert list(slips) == [("PRECEDE_BOOTSTRAPS", "PRECEDE_BOOTSTRAP"), ("PRECEDE_SHARD", "PRECEDE_SHARDS")]


def test_variables_are_text_and_are_taken_for_what_the_setting_asks() -> None:
    found = settings.load({}, {"PRECEDE_ONCE": "true", "PRECEDE_HISTORY_EVERY_S": "2.5", "PRECEDE_ONLY": "order"})
    assert (found.once, found.history_every_s, found.only) == (True, 2.5, "order")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"order": "sorted"}, "The setting order is 'sorted', but must be one of .*fifo.* s_b"),
        ({"shards": 0}, "The setting shards is 0, but must be a whole number from 1 to 1,000,000"),
        ({"shards": "many"}, "The setting shards is 'many', but must be a whole number"),
        ({"shards": 1.5}, r"The setting shards is 1.5, but must be a whole number\.$"),
        ({"limits": "many"}, r"The setting limits is 'many', but must be a table of limits\.$"),
        (
            {"limits": {"windows": 5}},
            r"but there is no limit windows: there are record_bytes_max, .*window, digests\.$",
        ),
        ({"limits": {"window": "5"}}, r"but limit window must be a whole number\.$"),
        ({"bootstrap": "localhost"}, "The setting bootstrap is 'localhost', but must be host:port"),
        ({"only": "both"}, "The setting only is 'both', but must be order or history"),
        ({"engine": "flink"}, "The setting engine is 'flink', but must be spark or process"),
        ({"raw_topic": "a b"}, "The setting raw_topic is 'a b', but must be the name of a Kafka topic"),
        ({"raw_topic": "precede.ordered"}, "raw_topic and ordered_topic both name the topic precede.ordered"),
        ({"tick_s": 0.01}, "The setting tick_s is 0.01, but must be from 0.1 to 3,600 seconds, or 0 for none"),
        ({"give_up_ms": -1}, "The setting give_up_ms is -1, but must be from 0 to"),
        ({"loss": "forget"}, "The setting loss is 'forget', but must be abandon or hold"),
        ({"control_topic": "precede.raw"}, "both name the topic precede.raw"),
        ({"history_every_s": float("nan")}, "The setting history_every_s is nan, but must be from 0 to 86,400 seconds"),
        ({"checkpoint": ""}, "The setting checkpoint is '', but must be a folder"),
        (
            {"delta": "s3://bucket"},
            "The setting delta is 's3://bucket', but must be a folder, or a URI that begins with",
        ),
        ({"checkpoint": "s3a:///folder"}, "The setting checkpoint is 's3a:///folder', but must be a folder, or a URI"),
        ({"memory": "lots"}, "The setting memory is 'lots', but must be a size such as 2g"),
        ({"limits": {"window": 0}}, "The setting limits .* limit window must be a whole number of at least 1"),
        ({"limits": {"record_bytes_max": 9_000_000}}, "The setting limits .* record_bytes_max of at most"),
        ({"master": "spark://host:7077"}, "The setting tasks must be set where master is a cluster"),
        (
            {"master": "spark://host:7077", "tasks": 2, "sasl_token_provider": "time:time"},
            "The setting sasl_token_provider gives tokens on this machine only",
        ),
        ({"only": "order", "rebuild_delta": True}, "With only = order no table is written, so none can be rebuilt"),
        ({"log_format": "xml"}, "The setting log_format is 'xml', but must be text or json"),
        ({"colour": "red"}, "colour is not a setting of precede"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_that_names_the_setting(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        settings.load(flags, {})


def test_a_config_file_is_refused_in_a_sentence_too(tmp_path: Path) -> None:
    path = tmp_path / "precede.toml"
    with pytest.raises(Refused, match="cannot be read: No such file"):
        settings.load({}, {}, path)
    path.write_text("order = ")
    with pytest.raises(Refused, match="is not TOML"):
        settings.load({}, {}, path)
    path.write_text("colour = 1")
    with pytest.raises(Refused, match="sets colour, which is not a setting"):
        settings.load({}, {}, path)


def test_the_reason_of_a_failed_query_is_one_line_and_what_no_retry_mends_is_told_apart() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted.\n"
        "org.apache.spark.SparkException: Job aborted due to stage failure: Traceback (most recent call last):\n"
        '  File "worker.py", line 1\nudfs.errors.Refused: The checkpoint\'s state has version 2.\n\n\tat org.apache'
    )
    found = REFUSED.search(text)
    assert found is not None
    assert found.group(1) == "The checkpoint's state has version 2."
    timeout = "x\nCaused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node.\n\tat y"
    assert reason_of(RuntimeError(timeout)) == "Timed out waiting for a node"
    assert REFUSED.search(timeout) is None


def test_executors_without_the_package_are_named_with_what_to_do() -> None:
    text = "Caused by: Traceback:\n  File 1\nModuleNotFoundError: No module named 'precede'\n\n\tat x"
    sentence = refusal_in(text)
    assert sentence is not None
    assert sentence.startswith(
        "The Python of Spark's executors has no module precede: send precede along with --py-files"
    )
    assert refusal_in("ConnectionError: away") is None


def test_the_job_s_patience_is_what_the_settings_say() -> None:
    found = settings.load({}, {"PRECEDE_GIVE_UP_MS": "5000", "PRECEDE_LOSS": "hold", "PRECEDE_SILENT_MS": "0"})
    assert found.patience() == Patience(give_up_ms=5_000, loss="hold", silent_ms=0)
    assert Settings().patience() == Patience()


def test_the_job_and_its_clients_call_the_topics_by_the_same_names() -> None:
    names = [topics.RAW_TOPIC, topics.ORDERED_TOPIC, topics.DEAD_LETTER_TOPIC]
    names += [topics.PROGRESS_TOPIC, topics.CONTROL_TOPIC, topics.STATE_TOPIC]
    settings = Settings()
    assert names == [topic.name for topic in topics.wanted()]
    fields = [field for field in settings.__struct_fields__ if field.endswith("_topic")]
    assert names == [getattr(settings, field) or settings.state_topic_name for field in fields]
    assert settings.partitions == topics.PARTITIONS
