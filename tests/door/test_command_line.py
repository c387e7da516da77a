"""The command line as a whole: help, version, exit status, sentences instead of tracebacks, and a quick start."""

import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import typer

from precede import command_line
from precede.command_line import COMMANDS, application, main
from precede.command_options import WrongUse, parse_id
from precede.commands.send import _json_text
from precede.ingest.kafka.reading import REQUEST_S
from precede.udfs.records.identifiers import id_text
from tests.door.command import ROOT, ids, lines, precede, raw


def test_help_names_every_command_and_ends_with_0() -> None:
    done = precede("--help")
    assert done.returncode == 0
    assert all(name in done.stdout.decode() for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(command: str) -> None:
    done = precede(command, "--help")
    assert done.returncode == 0
    assert f"  precede {command}" in done.stdout.decode()


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert precede("--version").stdout.decode() == f"precede {project['version']}\n"


def test_no_command_at_all_is_wrong_use_and_shows_the_help() -> None:
    done = precede()
    assert done.returncode == 2
    assert b"Usage: precede" in done.stdout
    assert done.stderr == b"Say which command.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["relay"], "No such command 'relay'. Did you mean 'replay'? See precede --help.\n"),
        (["quux"], "No such command 'quux'. See precede --help.\n"),
        (["tail", "--bootsrap", "b:1"], "No such option: --bootsrap. Did you mean --bootstrap? See precede tail"),
        (["doctor", "--delta", "delta"], "No such option: --delta. See precede doctor --help.\n"),
        (["run", "--shards", "0"], "The setting shards is 0, but must be"),
        (["run", "--only", "both"], "--only"),
        (["run", "--config", "/no/such/file"], "The config file /no/such/file cannot be read"),
        (["tail", "--bootstrap", "nowhere"], "The setting bootstrap is 'nowhere', but must be"),
        (["tail", "--count", "0"], "--count"),
        (["tail", "--fast"], "No such option: --fast. See precede tail --help."),
        (["send", "g", "ann"], "Missing argument 'TEXT'."),
        (["send", "", "ann", "hello"], "GROUP must have 1 to 255 bytes, not 0."),
        (["send", "g", "é" * 128, "hello"], "SENDER must have 1 to 255 bytes, not 256."),
        (["send", "g", "ann", "hello", "--after", "bob"], "--after bob is no id"),
        (["send", "g", "ann", "\udcff"], "TEXT is not UTF-8."),
        (["tail", "\udcff"], "GROUP is not UTF-8."),
        (["held", "\udcff"], "GROUP is not UTF-8."),
        (["send", "g", "ann", "{", "--json"], "TEXT is not a JSON value"),
        (["send", "g", "ann", "NaN", "--json"], "TEXT is not a JSON value"),
        (["groups", "--bootstrap", "there:9092", "leave", "g", "ann"], "--bootstrap stands before leave"),
        (["groups", "--json", "leave", "g", "ann"], "--json stands before leave"),
        (["broker", "--port", "99999"], "--port"),
        (["demo", "--seconds", "soon"], "--seconds"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_use_ends_with_2_and_one_sentence(arguments: list[str], sentence: str) -> None:
    done = precede(*arguments)
    said = done.stderr.decode()
    assert done.returncode == 2
    assert sentence in said
    assert said.count("\n") == 1
    assert done.stdout == b""


def options_before_commands() -> list[list[str]]:
    """Of each command that has commands of its own: every option of it, before each of those."""
    found: list[list[str]] = []
    for name, command in typer.main.get_command(application([])).commands.items():  # type: ignore[attr-defined]
        for below, option in product(getattr(command, "commands", {}), command.params):
            if hasattr(command, "commands") and option.name != "help":
                choices = getattr(option.type, "choices", ())
                good = choices[0] if choices else "1" if option.type.name == "int range" else None
                values: list[list[str]] = [[]] if option.is_flag else [["some"], [""]] if good is None else [[good]]
                found += [[name, option.opts[0], *value, below] for value in values]
    return found


def test_options_of_a_command_are_refused_before_a_command_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    cases = options_before_commands()
    assert ["groups", "--json", "leave"] in cases
    assert ["groups", "--bootstrap", "", "evict"] in cases
    for case in cases:
        with pytest.raises(SystemExit) as left:
            main([*case, "g", "ann"])
        said = capsys.readouterr().err
        assert (left.value.code, said.count("\n")) == (2, 1), case
        assert said.startswith(f"{case[1]} stands before {case[-1]}"), said


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_command_are_refused_before_its_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = typer.main.get_command(application([command])).commands[command]  # type: ignore[attr-defined]
    options = [one.opts[0] for one in found.params if one.param_type_name == "option" and one.name != "help"]
    assert options
    for option in options:
        with pytest.raises(SystemExit) as left:
            main([option, command])
        said = capsys.readouterr().err
        assert (left.value.code, said.count("\n")) == (2, 1)
        assert said.startswith(f"No such option: {option}")


@pytest.mark.parametrize("command", ["create", "join", "admit", "leave", "evict", "abandon"])
def test_options_of_the_list_of_groups_alone_are_refused_behind_another_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--json", "--delta"):
        with pytest.raises(SystemExit) as left:
            main(["groups", command, "g", "ann", option])
        said = capsys.readouterr().err
        assert (left.value.code, said.count("\n")) == (2, 1)
        assert said.startswith(f"No such option: {option}")
        assert said.endswith(f"See precede groups {command} --help.\n")


AWAY = ("--bootstrap", "127.0.0.1:1")
NEEDS_A_BROKER = [["send", "g", "ann", "hello"], ["tail"], ["tail", "--dead-letters"]]
Done = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def without_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Done]]]:
    """These commands and the job side by side, since each takes seconds to give up."""
    variables = {"PRECEDE_LOG_FORMAT": "json", "PRECEDE_PATIENCE_S": "0.1"}
    job = ("run", "--checkpoint", tmp_path_factory.mktemp("away") / "c", *AWAY)
    with ThreadPoolExecutor() as pool:
        started = {" ".join(one): pool.submit(precede, *one, *AWAY) for one in NEEDS_A_BROKER}
        yield started | {"run": pool.submit(precede, *job, variables=variables)}


@pytest.mark.parametrize("arguments", NEEDS_A_BROKER)
def test_a_broker_that_is_away_ends_with_1_and_one_sentence(
    without_broker: dict[str, Future[Done]], arguments: list[str]
) -> None:
    done = without_broker[" ".join(arguments)].result()
    assert done.returncode == 1
    assert done.stderr.decode() == "Cannot reach Kafka at 127.0.0.1:1.\n"


def test_a_job_that_cannot_begin_says_so_to_a_program_too(without_broker: dict[str, Future[Done]]) -> None:
    done = without_broker["run"].result()
    assert (done.returncode, done.stderr) == (1, b"Cannot reach Kafka at 127.0.0.1:1.\n")
    waits, ends = lines(done.stdout)
    assert "Trying again" in waits["message"]
    assert (ends["level"], ends["message"]) == ("error", "Cannot reach Kafka at 127.0.0.1:1.")


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "-"], ["send", "--help"], ["run", "--help"]])
def test_what_needs_no_spark_does_not_import_it(arguments: list[str]) -> None:
    program = (
        "import sys, atexit\n"
        "from precede.command_line import main\n"
        "slow = {'pyspark', 'pandas', 'pyarrow', 'numpy', 'confluent_kafka', 'kafka', 'deltalake'}\n"
        "atexit.register(lambda: print(sorted(slow & set(sys.modules)), file=sys.stderr))\n"
        f"main({arguments!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=raw("ann", 1), capture_output=True, timeout=30, check=False
    )
    assert done.stderr.decode().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("ann:1", ("ann", 0, 1)),
        ("a:b:12", ("a:b", 0, 12)),
        ("ann@2:7", ("ann", 2, 7)),
        ("ann@example.org:7", ("ann@example.org", 0, 7)),
        ("ann@5@0:7", ("ann@5", 0, 7)),
        ("ann@05@0:7", ("ann@05", 0, 7)),
        ("ann@12345678901@0:7", ("ann@12345678901", 0, 7)),
        ("line\nbreak@1:7", ("line\nbreak", 1, 7)),
        ("[x]:1", ("[x]", 0, 1)),
        ('["ann", 3, 1]', ("ann", 3, 1)),
        ('["[x]:1", 0, 9007199254740991]', ("[x]:1", 0, 2**53 - 1)),
    ],
)
def test_an_id_is_read_in_its_short_forms_and_as_json(text: str, id_: tuple[str, int, int]) -> None:
    assert parse_id(text) == id_
    assert parse_id(id_text(id_)) == id_


@pytest.mark.parametrize(
    "text",
    [
        *["ann@01:1", "ann@00:1", "ann@12345678901:1"],
        *["", "ann", ":1", "ann:", "ann:0", "ann:-1", "ann:1.0", "ann:²", "ann@2147483648:1"],
        *['["ann",1]', '["ann",-1,1]', '["",0,1]'],
        *["ann:" + "1" * 5_000, "\udcff:1", '["\udcff",0,1]'],
    ],
)
def test_what_is_no_id_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse):
        parse_id(text)


@pytest.mark.parametrize("text", ["1" * 5_000, "1e400", '"\\ud800"', '{"a":1,"a":[]}'])
def test_json_text_is_sent_as_it_was_written(text: str) -> None:
    assert _json_text(text) == text


def test_a_slip_in_a_variable_is_told_and_the_config_file_may_be_named_by_one(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('order = "fifo"\n')
    variables = {"PRECEDE_CONFIG": str(tmp_path / "config.toml"), "PRECEDE_ORDR": "total"}
    done = precede("replay", "-", given=raw("ann", 2) + b"\n" + raw("ann", 1) + b"\n", variables=variables)
    assert ids(done.stdout) == [("ann", 1), ("ann", 2)]
    assert done.stderr == (
        b"The variable PRECEDE_ORDR is not a setting of precede and has no effect: did you mean PRECEDE_ORDER?\n"
    )


def test_a_broker_that_is_away_is_told_of_in_the_seconds_there_are() -> None:
    began = time.monotonic()
    done = precede("tail", "--seconds", "1", "--bootstrap", "127.0.0.1:1")
    assert (done.returncode, done.stderr) == (1, b"Cannot reach Kafka at 127.0.0.1:1.\n")
    assert time.monotonic() - began < REQUEST_S, "it waited as long as if it had no deadline"


def test_a_container_platform_finds_the_last_sentence_where_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "termination-log"
    monkeypatch.setattr(command_line, "TERMINATION_LOG", place)
    config = tmp_path / "precede.toml"
    config.write_text("order = 'sorted'\n")
    for is_there in (False, True):
        if is_there:
            place.touch()
        with pytest.raises(SystemExit) as ended:
            main(["run", "--config", str(config)])
        assert ended.value.code == 2
        assert place.exists() == is_there
    assert place.read_text() == capsys.readouterr().err.splitlines()[-1] + "\n"
    assert place.read_text().startswith("The setting order is 'sorted'")
