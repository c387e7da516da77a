"""Places in an S3 store, through the JVM that Spark will run in: what goes wrong there is told in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from precede.streaming.settings import Settings
from tests.cluster.gate import Gate
from tests.cluster.s3 import Store
from tests.system.stream import HOME

# One process has one JVM, and the one of the other tests lacks the jars of S3; so these programs run in their own.
REACH = """
import json, sys, threading
from precede.ingest.client_tables import ClientTable
from precede.streaming.spark import session
from precede.streaming.settings import Settings
from precede.udfs.errors import Refused
place_of, table = json.loads(sys.argv[1])
settings = Settings(checkpoint=place_of, only="order", spark=ClientTable(table))
session.reach_stores(settings)
place = settings.checkpoint_place
"""
ALL = """
from tests.places import check_a_place
check_a_place(place)
"""
RACE = """
ready, won = threading.Barrier(8), []
def race(number):
    ready.wait()
    if (place / "raced").create(b"%d" % number):
        won.append(number)
threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
assert (place / "raced").read() == b"%d" % won[0], won
assert len(won) == 1, won
"""
LEASE = """
from precede.streaming.places import lease
quiet = lambda *_, **__: None
wanted = {place / "lease": "Taken."}
taken, = lease.take(wanted, say=quiet, lost=quiet)
assert taken.renew()
try:
    lease.take(wanted, say=quiet, lost=quiet, pause=lambda _: taken.renew() and None)
except Refused as refusal:
    assert str(refusal).startswith("Taken; process "), refusal
else:
    raise AssertionError("two hold one lease")
taken.release()
lease.take(wanted, say=quiet, lost=quiet, pause=lambda _: 1 / 0)[0].release()
"""
STARTS = """
from precede.streaming.places.place import make_writable
from precede.streaming.spark import checkpoint
try:
    make_writable("checkpoint", place)
    checkpoint.read(place)
except Refused as refusal:
    print("REFUSED", refusal)
"""
FAILS_LATER = """
from precede.streaming.places import lease
quiet = lambda *_, **__: None
try:
    lease.take({place / "lease": "Taken."}, say=quiet, lost=quiet)
except OSError as error:
    print(error.filename, error.strerror, sep="; ")
"""

TROUBLE = """
print(place.trouble())
"""


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as running:
        yield running


def run(program: str, settings: Settings) -> str:
    """Run a program against the store; what it prints."""
    command = [sys.executable, "-c", REACH + program, json.dumps([settings.checkpoint, settings.spark])]
    done = subprocess.run(command, cwd=HOME, env=os.environ, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def settings_of(store: Store, folder: str, *, secret: str = "a-secret", bucket: str = "bucket") -> Settings:
    return Settings(checkpoint=f"s3a://{bucket}/{folder}", only="order", spark=store.spark_table(secret=secret))


def test_a_place_in_a_store_does_what_a_place_does_and_of_many_creators_one_wins(store: Store) -> None:
    run(ALL + RACE + LEASE, settings_of(store, "place"))


def test_a_bucket_that_is_not_there_is_refused_in_a_sentence(store: Store) -> None:
    assert run(STARTS, settings_of(store, "place", bucket="nowhere")) == (
        "REFUSED The checkpoint folder s3a://nowhere/place is not writable: its bucket or container does not exist.\n"
    )


def test_a_store_that_rejects_the_credentials_is_named(store: Store) -> None:
    store.fail(status=403, for_s=60)
    try:
        said = run(STARTS, settings_of(store, "place", secret="wrong"))
    finally:
        store.fail()
    assert said == (
        "REFUSED The checkpoint folder s3a://bucket/place is not writable: the store rejected the credentials, or they "
        "do not allow this.\n"
    )


def test_what_fails_in_a_store_names_the_place(store: Store) -> None:
    store.fail(status=403, for_s=60)
    try:
        said = run(FAILS_LATER, settings_of(store, "place"))
    finally:
        store.fail()
    assert said == "s3a://bucket/place/lease; the store rejected the credentials, or they do not allow this\n"


@pytest.mark.nightly
def test_a_store_that_throttles_every_fifth_request_is_worked_with(store: Store) -> None:
    store.fail(status=503, for_s=30, every=5)
    try:
        run(ALL, settings_of(store, "throttled"))
    finally:
        store.fail()


def test_a_store_in_trouble_is_asked_once_and_says_what_it_is(store: Store) -> None:
    settings = settings_of(store, "trouble")
    assert run(TROUBLE, settings) == "None\n"
    store.requests()
    store.fail(status=503, for_s=120)
    try:
        assert run(TROUBLE, settings) == "it asks for fewer requests\n"
    finally:
        store.fail()
    assert 1 <= sum(store.requests().values()) <= 3, "nothing was tried again"
    with Gate(store.port) as gate:
        gate.shut()
        away = msgspec.structs.replace(settings, spark=store.spark_table(url=gate.url))
        assert run(TROUBLE, away) == "it takes no connections\n"


def test_a_half_written_file_is_refused_with_its_name(store: Store) -> None:
    store.client().put_object(Bucket="bucket", Key="half/precede.json", Body=b'{"v": 4, "ord')
    said = run(STARTS, settings_of(store, "half"))
    assert said.startswith("REFUSED The checkpoint file s3a://bucket/half/precede.json is damaged: ")
