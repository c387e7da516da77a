"""Where `follow`, `Member` and `Groups` get their settings: argument, variable, file, default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precede import Access, Address, Refused
from precede.client_settings import client_settings
from precede.streaming.settings import Settings


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRECEDE_ORDERED_TOPIC", "of.variable")
    monkeypatch.setenv("PRECEDE_RAW_TOPIC", "of.variable.raw")
    path = tmp_path / "precede.toml"
    path.write_text('bootstrap = "file:1"\nordered_topic = "of.file"\ncontrol_topic = "of.file.control"\n')
    return path


def test_an_argument_is_over_a_variable_over_the_file_over_the_default(config: Path) -> None:
    found = client_settings(config, bootstrap=None, raw_topic="of.argument", ordered_topic=None)
    assert (str(found.bootstrap), found.raw_topic, found.ordered_topic, found.control_topic, found.progress_topic) == (
        "file:1", "of.argument", "of.variable", "of.file.control", "precede.progress",
    )  # fmt: skip
    assert str(client_settings(str(config), bootstrap="argument:2").bootstrap) == "argument:2"


def test_the_file_may_be_named_by_a_variable(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(client_settings(None, bootstrap=None).bootstrap) == "localhost:9092"
    monkeypatch.setenv("PRECEDE_CONFIG", str(config))
    assert str(client_settings(None, bootstrap=None).bootstrap) == "file:1"


def test_an_address_brings_its_own_access_and_text_gets_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": "ann",
        "sasl_mechanism": "PLAIN",
        "sasl_password": "secret",
    }.items():
        monkeypatch.setenv(f"PRECEDE_{name.upper()}", value)
    of_text = client_settings(None, bootstrap="there:1").bootstrap
    access = Access(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="ann", password="secret")
    assert of_text == Address("there:1", access)
    own = Address("here:1", Access(protocol="SSL"))
    assert client_settings(None, bootstrap=own).bootstrap == own


def test_settings_that_a_command_has_found_are_taken_as_they_are(config: Path) -> None:
    given = Settings(bootstrap="given:1", ordered_topic="of.command")
    assert client_settings(given, bootstrap=None) == given
    assert client_settings(given, bootstrap="other:1", key="k").key == "k"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"bootstrap": "nonsense"}, "The setting bootstrap is 'nonsense', but must be host:port"),
        ({"config": "absent.toml", "bootstrap": None}, "The config file absent.toml cannot be read"),
    ],
)
def test_what_cannot_be_a_setting_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        client_settings(given.pop("config", None), **given)


def test_a_partitioner_that_is_none_and_a_variable_that_is_a_slip_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="there is no partitioner 'md5'"):
        client_settings(None, bootstrap=None, partitioner="md5")
    monkeypatch.setenv("PRECEDE_BOOTSTRAPS", "there:1")
    with pytest.warns(UserWarning, match="did you mean PRECEDE_BOOTSTRAP"):
        client_settings(None, bootstrap=None)
