"""Places on this machine, and what names one; those in a store have the same tests with a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from precede.streaming.places import place
from precede.streaming.places.hadoop import HadoopPlace
from precede.streaming.places.place import LocalPlace
from precede.streaming.places.store_options import storage_options
from tests.places import check_a_place


def test_a_folder_of_this_machine_does_what_a_place_does(tmp_path: Path) -> None:
    check_a_place(LocalPlace(tmp_path / "place"))


@pytest.mark.parametrize(
    "text",
    [
        "checkpoints/",
        "/data/a:b",
        "file:/data",
        "file:///data",
        "s3a://b/c",
        "hdfs://host:9000/c",
        "hdfs:///c",
        "gs://b/c",
    ],
)
def test_these_name_a_place(text: str) -> None:
    assert place.is_place(text)


@pytest.mark.parametrize(
    "text", ["", "a\0b", "s3://bucket/c", "s3a:///c", "s3a:/bucket/c", "http://host/c", "ftp://host/c"]
)
def test_these_name_none(text: str) -> None:
    assert not place.is_place(text)


def test_a_uri_of_a_file_is_a_folder_of_this_machine() -> None:
    assert place.at("file:///a%20b/c") == LocalPlace(Path("/a b/c"))
    assert place.at("file:/a/c") == LocalPlace(Path("/a/c"))


def test_a_place_in_a_store_keeps_its_slashes_and_needs_no_store_to_be_named() -> None:
    named = place.at("s3a://bucket/checkpoint/") / "order"
    assert isinstance(named, HadoopPlace)
    assert (str(named), named.name, named.location) == ("s3a://bucket/checkpoint/order", "order", str(named))
    assert str(named.sibling("aside")) == "s3a://bucket/checkpoint/aside"


def test_delta_rs_learns_of_s3_what_hadoop_knows_and_its_own_options_come_first() -> None:
    hadoop = {
        "fs.s3a.endpoint": "store.example:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "id",
        "fs.s3a.secret.key": "hush",
        "fs.s3a.threads.max": "4",
    }
    assert storage_options({"aws_access_key_id": "mine"}, hadoop) == {
        "aws_endpoint_url": "http://store.example:9000",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
        "aws_access_key_id": "mine",
        "aws_secret_access_key": "hush",
    }
    assert storage_options({}, {"fs.s3a.endpoint": "store.example"})["aws_endpoint_url"] == "https://store.example"
