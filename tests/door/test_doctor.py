"""What `precede doctor` finds on this machine, without Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from precede.doctor import machine
from precede.doctor.findings import Finding, ok, origins
from precede.doctor.machine import check_machine
from precede.ingest.signing import make_key
from precede.streaming import settings
from precede.streaming.settings import Settings
from precede.streaming.spark import jars


def found(folder: Path, **more: object) -> list[Finding]:
    return list(check_machine(Settings(engine="process", cache=str(folder / "cache"), **more)))  # type: ignore[arg-type]


def stops(findings: list[Finding]) -> list[str]:
    return [one.what for one in findings if one.level == "stop"]


def test_a_key_to_sign_with_and_that_of_the_segments_are_read(tmp_path: Path) -> None:
    key, segment_key = tmp_path / "ann.key", tmp_path / "segment.key"
    absent = found(tmp_path, key=str(key), segment_key=str(segment_key))
    assert len(stops(absent)) == 2
    for name, said in zip((key, segment_key), stops(absent), strict=True):
        assert f"{name} cannot be read: No such file or directory." in said
    make_key(key)
    segment_key.touch(0o600)
    segment_key.write_text("0123456789abcdef" * 2)
    there = found(tmp_path, key=str(key), segment_key=str(segment_key))
    assert ok(f"The key that commands and members sign with is in {key}.") in there
    assert ok(f"The key of the segments is in {segment_key}.") in there
    assert stops(there) == []


def test_the_folder_of_a_gateway_is_tried_where_one_is_set(tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    assert ok(f"The gateway folder {folder} is writable.") in found(tmp_path, gateway=str(folder))
    (tmp_path / "file").touch()
    assert stops(found(tmp_path, gateway=str(tmp_path / "file"))) == [
        f"The gateway folder {tmp_path / 'file'} is not writable: File exists."
    ]
    assert not any("The gateway folder" in one.what for one in found(tmp_path))


@pytest.mark.parametrize(("delta", "missing"), [("delta/", {"spark"}), ("s3a://bucket/delta", {"spark", "s3"})])
def test_the_jars_for_s3_are_looked_for_where_a_place_is_there(
    tmp_path: Path, delta: str, missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "java", lambda: "java")  # it need not be there
    chosen = Settings(checkpoint=str(tmp_path / "checkpoint"), delta=delta, only="order", jars=str(tmp_path / "jars"))
    told = {one.what.partition(" are not in ")[2].partition(" yet")[0]: one for one in check_machine(chosen)}
    del told[""]
    assert set(told) == {str(tmp_path / "jars" / name) for name in missing}
    for name in missing:
        count = len(jars.expected(name)) + (name == "s3")  # one more is compiled
        assert told[str(tmp_path / "jars" / name)].what.startswith(f"{count} jars ")
        assert told[str(tmp_path / "jars" / name)].level == "note"


def test_a_table_without_entries_is_shown_as_not_set_and_one_with_entries_by_its_names(tmp_path: Path) -> None:
    file = tmp_path / "precede.toml"
    file.write_text('[kafka]\n"client.rack" = "a"\n')
    shown = {name: value for name, value, _ in origins(settings.load({}, {}, file), {}, {}, file)}
    assert (shown["kafka"], shown["spark"], shown["storage"]) == ("<client.rack>", "-", "-")


def test_the_state_topic_is_shown_by_the_name_that_it_gets() -> None:
    given = Settings(ordered_topic="orders.ordered")
    shown = {name: value for name, value, _ in origins(given, {}, {}, None)}
    assert shown["state_topic"] == "orders.state"
