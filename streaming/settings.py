"""The settings of a job: a flag overrides a `PRECEDE_*` variable, that a TOML file, and that the default."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from precede.ingest.client_tables import ClientTable, client_table
from precede.ingest.kafka.access import Address
from precede.ingest.kafka.credentials import PASSWORD, PASSWORD_WANTED, SECRET_SETTING, Credentials, address
from precede.ingest.segment.address import DEFAULT_URL, read_addresses
from precede.ingest.sender_state import default_file
from precede.ingest.service.running import host_and_port
from precede.streaming import raw_partitions
from precede.streaming.places import place, store_options
from precede.streaming.places.place import LocalPlace, Place
from precede.udfs.errors import Refused
from precede.udfs.limits import Limits, Patience
from precede.udfs.orders import ORDERS
from precede.udfs.partitioner import DEFAULT_PARTITIONER, PARTITIONERS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from precede.ingest.kafka.topics import Wanted

PREFIX = "PRECEDE_"
OTHER_VARIABLES = ("PRECEDE_CONFIG", "PRECEDE_DEBUG", "PRECEDE_IVYSETTINGS", PASSWORD)
"""Variables that are read in other modules."""
SPARK_ONLY = (
    *("checkpoint", "delta", "shards", "rebuild_delta", "history_every_s", "trigger_ms", "max_offsets_per_trigger"),
    *("tasks", "jars", "master", "memory", "ui", "spark"),
)
"""What the engine process does not need."""
STORE_TRIGGER_MS = 5_000
DAYS_MS_MAX = 365 * 86_400_000
RECORD_BYTES_MAX = 2 * 1024 * 1024 - 64 * 1024
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
MEMORY = re.compile(r"[1-9][0-9]*[mg]")
LISTENS = re.compile(r"([^\s,:]*:|\[[0-9A-Fa-f:]+\]:)?[0-9]{1,5}")
SERVERS = re.compile(r"[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*|(\[[0-9A-Fa-f:]+\]:[0-9]{1,5})")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings; units stand last in a name."""

    bootstrap: Address | str = Address("localhost:9092")  # `load` adds the credentials
    checkpoint: str = "checkpoints/"
    delta: str = "delta/"
    order: str = "s_b"
    shards: int = 16
    limits: Limits = Limits()
    only: str | None = None
    once: bool = False
    raw_partitions: str | None = None  # such as 0-3,7: the partitions that this job orders; None: all of them

    raw_topic: str = "precede.raw"
    ordered_topic: str = "precede.ordered"
    dead_letter_topic: str = "precede.dead-letters"
    progress_topic: str = "precede.progress"
    control_topic: str = "precede.control"
    state_topic: str | None = None  # None: named after the ordered topic, see `state_topic_name`
    partitions: int = 4  # of a topic that precede creates; an existing one stays as it is
    partitioner: str = DEFAULT_PARTITIONER  # the function of the key that says in which partition a group lives
    replicas: int = -1  # of such a topic; -1 takes the broker's default

    state_every_s: float = 10.0  # time of the log after which a changed group is in the state topic at the latest
    engine: str = "spark"  # what runs the kernel: spark, or process, which is this process alone
    commit_ms: int = 10  # engine process: the shortest time between two transactions
    cache: str = "cache/"  # engine process: folder of a copy of the state, for a fast start

    tick_s: float = 1.0  # how often the job writes a tick into the log; 0: never
    ask_after_ms: int = Patience().ask_after_ms  # age at which the sender of a gap is first asked for it
    give_up_ms: int = Patience().give_up_ms  # age at which a gap counts as lost, unless its group says when; 0: never
    loss: str = Patience().loss  # what happens to a lost gap: abandon, or hold
    silent_ms: int = Patience().silent_ms  # how long a member that others wait for may be silent; 0: for ever

    history_every_s: float = 10.0
    trigger_ms: int | None = None  # None: see `pause_ms`
    max_offsets_per_trigger: int = 200_000
    tasks: int = 0  # shuffle partitions, pinned by the checkpoint; 0 takes the number of cores at the first start
    patience_s: float = 1_800.0  # how long a broker may be away before the job gives up
    accept_cut_log: bool = False
    rebuild_delta: bool = False  # remove the tables, and write them again from the topics

    state: str | None = None  # file in which `precede send` and `precede groups` keep the last seq of each sender
    confirm_s: float = 30.0  # how long who sends waits until Kafka confirms a record
    key: str | None = None  # file of the private key that `precede send` signs with
    service_key: str | None = None  # file of the private key that the job signs its own `evict` and `abandon` with
    metrics: str | None = None  # port, or host:port, of /metrics and /health; None: they are not served
    log_format: str = "text"

    segment: str = DEFAULT_URL  # where peers speak; a gateway may have several, with commas between them
    segment_key: str | None = None  # file of the key that all peers of the segment have
    gateway: str | None = None  # folder of a gateway, of what the log lacks; None: in the user's state folder
    gateway_keeps_mb: int = 256  # how much of what the log lacks a gateway keeps

    security_protocol: str | None = None  # this and the next ones: see ingest/kafka/credentials.py
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_file: str | None = None
    sasl_token_provider: str | None = None  # module:function
    ssl_ca_file: str | None = None
    ssl_certificate_file: str | None = None
    ssl_key_file: str | None = None
    kafka: ClientTable = ClientTable()  # names and values for librdkafka, as they are

    jars: str | None = None
    master: str | None = None  # None: as spark-submit sets it, or else every core of this machine
    memory: str = "2g"
    ui: bool = False
    spark: ClientTable = ClientTable()  # names and values for Spark and Hadoop, as they are
    storage: ClientTable = ClientTable()  # names and values for delta-rs, which reads Delta tables without Spark

    def patience(self, key: "Ed25519PrivateKey | None" = None) -> Patience:
        """How long the job waits for what is missing; `key` is the job's service key, if it has one."""
        return Patience(
            ask_after_ms=self.ask_after_ms,
            give_up_ms=self.give_up_ms,
            loss="hold" if self.loss == "hold" else "abandon",
            silent_ms=self.silent_ms,
            service_key=None if key is None else key.public_key().public_bytes_raw(),
        )

    def topics(self) -> list["Wanted"]:
        """The topics of this stream, each with the settings that it needs."""
        from precede.ingest.kafka import topics  # loads Kafka, which `precede replay` does not need

        return topics.wanted(
            raw_topic=self.raw_topic,
            ordered_topic=self.ordered_topic,
            dead_letter_topic=self.dead_letter_topic,
            progress_topic=self.progress_topic,
            control_topic=self.control_topic,
            state_topic=self.state_topic_name,
            partitions=self.partitions,
            limits=self.limits,
        )

    @property
    def state_topic_name(self) -> str:
        """The state topic; by default each ordered topic has its own, as `precede.ordered` has `precede.state`."""
        return self.state_topic or f"{self.ordered_topic.removesuffix('.ordered')}.state"

    @property
    def runs_without_spark(self) -> bool:
        """Whether this is a job of the engine process; history is always written by Spark."""
        return self.engine == "process" and self.only != "history"

    @property
    def checkpoint_place(self) -> Place:
        """Where the job's progress and state are."""
        return place.at(self.checkpoint)

    @property
    def delta_place(self) -> Place:
        """The root of the Delta tables."""
        return place.at(self.delta)

    @property
    def storage_options(self) -> dict[str, str]:
        """How delta-rs reaches the Delta tables."""
        return store_options.storage_options(self.storage, store_options.hadoop_values(self.spark))

    @property
    def pause_ms(self) -> int:
        """The least time between two batches; in a store each batch costs requests."""
        if self.trigger_ms is not None:
            return self.trigger_ms
        return 0 if place.is_local(self.checkpoint) else STORE_TRIGGER_MS

    @property
    def stores(self) -> list[Place]:
        """The places of the job's files that are in a store, and not on this machine."""
        used = [self.checkpoint] if self.only == "order" else [self.checkpoint, self.delta]
        return [place.at(one) for one in used if not place.is_local(one)]

    @property
    def order_checkpoint(self) -> Place:
        """Where Spark keeps the order query's offsets, commits and state."""
        return self.checkpoint_place / "order"

    @property
    def restored_files(self) -> Place:
        """Where the state is kept with which the order query's checkpoint began, until every shard has taken it."""
        return self.order_checkpoint / "restored"

    @property
    def jars_home(self) -> Path | None:
        """Where jars are kept; None for the default place."""
        return Path(self.jars).expanduser() if self.jars else None

    @property
    def jar_configurations(self) -> list[Literal["spark", "s3"]]:
        """The configurations of jars that Spark needs for these settings."""
        is_in_s3 = any(one.startswith("s3a:") for one in (self.checkpoint, self.delta))
        return ["spark", "s3"] if is_in_s3 else ["spark"]

    @property
    def logs(self) -> Path:
        """Where Spark's log files are: beside a checkpoint of this machine, else in the user's state folder."""
        checkpoint = self.checkpoint_place
        if isinstance(checkpoint, LocalPlace):
            return checkpoint.path / "logs"
        return default_file().with_name("logs") / re.sub(r"[^A-Za-z0-9.-]+", "-", self.checkpoint).strip("-")

    def history_checkpoint(self, table: str) -> Place:
        """Where Spark keeps the offsets and commits of a table's history query."""
        return self.checkpoint_place / "history" / table


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config_file: str | Path | None = None,
    *,
    reaches_kafka: bool = True,
) -> Settings:
    """The settings of this start; a flag that is None was not given. Credentials are read only for `reaches_kafka`."""
    found = check(_convert(given(flags, environ, config_file)))
    if not reaches_kafka:
        return found
    credentials = Credentials(**{name: getattr(found, name) for name in Credentials.__struct_fields__})
    return msgspec.structs.replace(found, bootstrap=address(str(found.bootstrap), credentials, environ))


def given(
    flags: Mapping[str, Any], environ: Mapping[str, str], config_file: str | Path | None = None
) -> dict[str, Any]:
    """What is not left to its default, before it is checked."""
    values: dict[str, Any] = {}
    values.update(from_file(Path(config_file)) if config_file else {})
    values.update(from_environment(environ))
    values.update((name, value) for name, value in flags.items() if value is not None)
    return values


def from_file(path: Path) -> dict[str, Any]:
    """What the config file sets, before it is checked."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"The config file {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"The config file {path} is not TOML: {error}.") from error
    if SECRET_SETTING in values:
        raise Refused(f"The config file {path} holds {SECRET_SETTING}, where others may read it: {PASSWORD_WANTED}.")
    unknown = sorted(set(values) - set(Settings.__struct_fields__))
    if unknown:
        raise Refused(f"The config file {path} sets {unknown[0]}, which is not a setting of precede.")
    return values


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ignores variables that name no setting: a platform may have set them for a service named precede."""
    return {_VARIABLES[name]: text for name, text in environ.items() if name in _VARIABLES and text != ""}


TABLES = ("limits", "spark", "kafka", "storage")
"""Settings that only the config file can have."""
_VARIABLES = {PREFIX + name.upper(): name for name in Settings.__struct_fields__ if name not in TABLES}


def likely_slips(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that name no setting, each with the variable that was probably meant."""
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in _VARIABLES and name not in OTHER_VARIABLES:
            known = [other.removeprefix(PREFIX) for other in (*_VARIABLES, *OTHER_VARIABLES)]
            for near in get_close_matches(name.removeprefix(PREFIX), known, n=1, cutoff=0.75):
                yield name, PREFIX + near


def _convert(values: dict[str, Any]) -> Settings:
    """Convert to the settings' types; a variable is text, so its `8` or `true` becomes a number or a boolean."""
    for name, value in values.items():
        kind = str if name == "bootstrap" else Settings.__annotations__.get(name)
        if kind is None:
            raise Refused(f"{name} is not a setting of precede.")
        if kind is ClientTable:
            values[name] = client_table(name, value)
            continue
        try:
            values[name] = msgspec.convert(_readable(value), kind, strict=not isinstance(value, str))
        except msgspec.ValidationError as error:
            wrong = _limit_fault(value, error) if kind is Limits else f"but must be {_wanted(kind)}"
            raise Refused(f"The setting {name} is {value!r}, {wrong}.") from error
    return Settings(**values)


def _readable(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _limit_fault(value: Any, error: Exception) -> str:
    """What is wrong with a table of limits: not a table, an unknown name, or an impossible number."""
    if not isinstance(value, Mapping):
        return "but must be a table of limits"
    unknown = [name for name in value if name not in Limits.__struct_fields__]
    if unknown:
        return f"but there is no limit {unknown[0]}: there are {', '.join(Limits.__struct_fields__)}"
    not_whole = [name for name, number in value.items() if number.__class__ is not int]
    return f"but limit {not_whole[0]} must be a whole number" if not_whole else f"but {error}"


def _wanted(kind: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "text")


def check(settings: Settings) -> Settings:
    """Refuse values that no job can run with, in a sentence that names the setting."""
    for name, good, wanted in _RULES:
        value = getattr(settings, name)
        if not good(value):
            raise Refused(f"The setting {name} is {value!r}, but must be {wanted}.")
    if _is_cluster(settings) and settings.tasks == 0:
        raise Refused(
            f"The setting tasks must be set where master is a cluster ({settings.master}): to the number of cores that "
            "the job has there; the checkpoint fixes it."
        )
    store_options.check_spark_table(settings.spark)
    if _is_cluster(settings) and not settings.runs_without_spark:
        check_tokens_on_cluster(settings)
    if settings.raw_partitions is not None and settings.only == "history":
        raise Refused(
            "With only = history nothing is ordered, and the history of all partitions is written: leave out "
            "raw_partitions."
        )
    if settings.rebuild_delta and settings.only == "order":
        raise Refused("With only = order no table is written, so none can be rebuilt: leave out one of the two.")
    read_addresses(settings.segment)
    topics = {name: getattr(settings, name) for name in _TOPICS} | {"state_topic": settings.state_topic_name}
    for name, topic in topics.items():
        others = [other for other in topics if other != name and topics[other] == topic]
        if others:
            raise Refused(f"The settings {name} and {others[0]} both name the topic {topic}; each needs its own.")
    return settings


def _is_cluster(settings: Settings) -> bool:
    return settings.master is not None and not settings.master.startswith("local")


def check_tokens_on_cluster(settings: Settings) -> None:
    """Refuse tokens of a function, which no other machine can ask."""
    if settings.sasl_token_provider is not None:
        raise Refused(
            "The setting sasl_token_provider gives tokens on this machine only, and Spark's workers on a cluster need "
            "them too: use OIDC there (sasl.oauthbearer.token.endpoint.url in the table [kafka])."
        )


_TOPICS = ("raw_topic", "ordered_topic", "dead_letter_topic", "progress_topic", "control_topic")
_TOPIC_WANTED = "the name of a Kafka topic: at most 249 letters, digits, dots, dashes and underscores"


def _between(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: least <= value <= most


def _is_folder(value: str) -> bool:
    return bool(value) and "://" not in value and "\0" not in value


_RULES: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "bootstrap",
        lambda servers: SERVERS.fullmatch(str(servers)) is not None,
        "host:port, or several with commas between them",
    ),
    ("checkpoint", place.is_place, place.WANTED),
    ("delta", place.is_place, place.WANTED),
    ("order", lambda name: name in ORDERS, f"one of {', '.join(sorted(ORDERS))}"),
    ("shards", _between(1, 1_000_000), "a whole number from 1 to 1,000,000"),
    (
        "limits",
        lambda limits: limits.record_bytes_max <= RECORD_BYTES_MAX,
        f"a table with a record_bytes_max of at most {RECORD_BYTES_MAX:,}, so that what is appended fits too",
    ),
    ("only", lambda value: value in (None, "order", "history"), "order or history"),
    (
        "raw_partitions",
        lambda text: text is None or raw_partitions.named(text) is not None,
        "numbers and ranges of partitions with commas between them, such as 0-3,7",
    ),
    *(
        (name, lambda text: TOPIC_NAME.fullmatch(text) is not None and text not in (".", ".."), _TOPIC_WANTED)
        for name in _TOPICS
    ),
    (
        "state_topic",
        lambda text: text is None or (TOPIC_NAME.fullmatch(text) is not None and text not in (".", "..")),
        _TOPIC_WANTED,
    ),
    ("state_every_s", _between(0, 3_600), "from 0 to 3,600 seconds"),
    ("engine", lambda name: name in ("spark", "process"), "spark or process"),
    ("gateway", lambda value: value is None or _is_folder(value), "a folder of this machine"),
    ("gateway_keeps_mb", _between(1, 65_536), "from 1 to 65,536 MiB"),
    ("commit_ms", _between(1, 10_000), "from 1 to 10,000 milliseconds"),
    ("cache", _is_folder, "a folder of this machine or of a volume mounted on it"),
    ("partitions", _between(1, 10_000), "a whole number from 1 to 10,000"),
    ("partitioner", lambda name: name in PARTITIONERS, f"one of {', '.join(PARTITIONERS)}"),
    ("confirm_s", _between(0.1, 3_600), "from 0.1 to 3,600 seconds"),
    ("replicas", lambda count: count == -1 or 1 <= count <= 100, "from 1 to 100, or -1 for the broker's own default"),
    ("tick_s", lambda seconds: seconds == 0 or 0.1 <= seconds <= 3_600, "from 0.1 to 3,600 seconds, or 0 for none"),
    ("ask_after_ms", _between(1, DAYS_MS_MAX), "from 1 to 31,536,000,000 milliseconds"),
    ("give_up_ms", _between(0, DAYS_MS_MAX), "from 0 to 31,536,000,000 milliseconds; 0 never gives up"),
    ("loss", lambda name: name in ("abandon", "hold"), "abandon or hold"),
    ("silent_ms", _between(0, DAYS_MS_MAX), "from 0 to 31,536,000,000 milliseconds; 0 never evicts"),
    ("history_every_s", _between(0, 86_400), "from 0 to 86,400 seconds"),
    ("trigger_ms", lambda value: value is None or 0 <= value <= 3_600_000, "from 0 to 3,600,000 milliseconds"),
    ("max_offsets_per_trigger", _between(1, 100_000_000), "a whole number from 1 to 100,000,000"),
    ("tasks", _between(0, 100_000), "a whole number from 0 to 100,000"),
    ("patience_s", _between(0, 30 * 86_400), "from 0 to 2,592,000 seconds"),
    (
        "metrics",
        lambda text: text is None or (LISTENS.fullmatch(text) is not None and host_and_port(text)[1] < 65_536),
        "a port, or host:port; 0.0.0.0:9464 lets other machines in",
    ),
    ("log_format", lambda name: name in ("text", "json"), "text or json"),
    ("memory", lambda text: MEMORY.fullmatch(text) is not None, "a size such as 2g or 1500m"),
]
