"""Tests cannot run the image and the compose file; these find the mistakes that show without running."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml

from precede.check.judge import Check
from precede.check.watching import CheckPages
from precede.command_line import COMMANDS
from precede.gateway.bridge import Bridge
from precede.gateway.history import LogHistory
from precede.gateway.log_kernel import LogKernel
from precede.gateway.status import GatewayPages, look_at
from precede.ingest.kafka.topics import Retention
from precede.ingest.live.kernel import KernelState, StreamIdentity
from precede.ingest.service.broker_monitor import BrokerMonitor
from precede.ingest.service.running import host_and_port
from precede.streaming.monitoring.history_monitor import HistoryMonitor
from precede.streaming.monitoring.metrics import Metrics
from precede.streaming.monitoring.query_keeper import QueryKeeper
from precede.streaming.monitoring.retention_monitor import RetentionMonitor
from precede.streaming.order.counts import JobCounts, Times
from precede.streaming.settings import Settings
from precede.udfs.codes import CODES
from precede.udfs.limits import Limits
from tests.test_tidy import flags_of

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
INSTRUCTIONS = re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)


def arguments_of(instruction: str) -> list[str]:
    return [arguments for name, arguments in INSTRUCTIONS if name == instruction]


def listeners(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)://([^,]*)", text))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_comes_from_something_that_exists_and_has_a_version(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w/-]+:v?\d[\w.-]*", service["image"])
    if build := service.get("build"):
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_every_volume_is_declared_and_every_declared_one_is_used(name: str) -> None:
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]}
    files = {place for place in mounted if place.startswith("./")}
    assert mounted - files == set(COMPOSE["volumes"])
    assert all((ROOT / place).exists() for place in files)
    assert SERVICES[name]["volumes"], "stored data must outlive its container"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_only_for_what_can_tell_that_it_is_healthy(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how["condition"] == "service_healthy"
        assert SERVICES[other]["healthcheck"]["test"][0] == "CMD"


def test_the_broker_is_of_the_version_that_the_tests_run_on() -> None:
    revision = re.search(r'name="kafka_2.13" rev="([^"]+)"', (ROOT / "streaming" / "spark" / "ivy.xml").read_text())
    assert revision is not None
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{revision[1]}"


def test_the_brokers_listeners_fit_together() -> None:
    settings = SERVICES["kafka"]["environment"]
    bound, told = listeners(settings["KAFKA_LISTENERS"]), listeners(settings["KAFKA_ADVERTISED_LISTENERS"])
    protocols = dict(pair.split(":") for pair in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    controller = settings["KAFKA_CONTROLLER_LISTENER_NAMES"]
    assert set(bound) == set(protocols) == {*told, controller}
    assert settings["KAFKA_INTER_BROKER_LISTENER_NAME"] in told
    assert {name: address.split(":")[1] for name, address in told.items()} == {
        name: address.removeprefix(":") for name, address in bound.items() if name != controller
    }
    assert settings["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{settings['KAFKA_NODE_ID']}@kafka{bound[controller]}"
    assert SERVICES["kafka"]["volumes"] == [f"kafka:{settings['KAFKA_LOG_DIRS']}"]
    host_port, container_port = SERVICES["kafka"]["ports"][0].rsplit(":", 2)[1:]
    assert told["EXTERNAL"] == f"localhost:{host_port}"
    assert bound["EXTERNAL"] == f":{container_port}"
    assert SERVICES["kafka"]["healthcheck"]["test"][-1] == told["EXTERNAL"]


def test_the_job_is_a_command_with_settings_that_exist_and_a_broker_that_answers_there() -> None:
    job = SERVICES["job"]
    word, command, *flags = job["command"]
    assert f"\n{word}) " in (ROOT / "deploy" / "entrypoint.sh").read_text()
    assert command in COMMANDS
    assert {flag for flag in flags if flag.startswith("--")} <= flags_of(command)
    variables = job["environment"]
    assert {name.removeprefix("PRECEDE_").lower() for name in variables} <= set(Settings.__struct_fields__)
    told = listeners(SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"])
    assert variables["PRECEDE_BOOTSTRAP"] == told["INTERNAL"]
    for kept in ("PRECEDE_CHECKPOINT", "PRECEDE_DELTA"):
        assert variables[kept].startswith(job["volumes"][0].split(":")[1] + "/")


def test_the_job_tells_its_health_where_the_compose_file_looks_for_it() -> None:
    job = SERVICES["job"]
    host, port = host_and_port(job["environment"]["PRECEDE_METRICS"])
    assert host == "0.0.0.0", "a container's own localhost is out of reach"
    assert f"http://localhost:{port}/health" in job["healthcheck"]["test"][-1]
    compile(job["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert job["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_image_is_made_of_what_is_there_and_runs_precede_as_nobody_special() -> None:
    assert all(re.fullmatch(r"[\w/-]+:\d[\w.-]*", image) for image in arguments_of("FROM"))
    for copied in arguments_of("COPY"):
        *sources, _ = copied.split()
        assert all((ROOT / source).exists() for source in sources)
        let_in = (ROOT / ".dockerignore").read_text().splitlines()
        assert all(f"!{source}" in let_in for source in sources), "what .dockerignore keeps out cannot be copied"
    entrypoint = json.loads(arguments_of("ENTRYPOINT")[-1])
    assert entrypoint == ["tini", "--", "/opt/entrypoint.sh"]
    assert os.access(ROOT / "deploy" / "entrypoint.sh", os.X_OK)
    assert any("deploy/entrypoint.sh" in copied and copied.endswith(" /opt/") for copied in arguments_of("COPY"))
    assert arguments_of("USER")[-1] not in ("root", "0")
    assert arguments_of("VOLUME") == [SERVICES["job"]["volumes"][0].split(":")[1]]


def test_the_image_has_its_jars_before_it_starts() -> None:
    assert any("python -m precede.streaming.spark.jars spark s3" in step for step in arguments_of("RUN"))


RULES: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "chart" / "files" / "alarms.yml").read_text())
ALARMS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
FROM_PROMETHEUS = {"up"}


def told_metrics() -> dict[str, set[str]]:
    """The metrics of a job, of a gateway and of a check, by their Prometheus names, with their labels."""
    settings = Settings(metrics="0")
    metrics = Metrics(settings, BrokerMonitor(settings.bootstrap, settings.raw_topic), lambda: True)
    metrics.broker.ends[0] = (0, 1)
    metrics.sink = SimpleNamespace(  # type: ignore[assignment]
        counts=JobCounts(), times=Times(), ownership=SimpleNamespace(partitions=[0]), is_token_known=True
    )
    metrics.retention = RetentionMonitor(settings, Retention(1, None), dict)
    names = ("order", "history of deliveries")
    metrics.keepers = [QueryKeeper(name, lambda: None, print, 1, print) for name in names]  # type: ignore[arg-type, return-value]
    metrics.keepers[0].progress_at, metrics.keepers[0].behind = 1.0, 0
    metrics.keepers[1].reached = {("precede.ordered", 0): 5}
    metrics.history = HistoryMonitor(settings, print)  # type: ignore[arg-type]
    metrics.history.differences["deliveries"] = 0
    metrics.observe("order", "triggerExecution", 1.0)
    told: dict[str, set[str]] = {}
    for family in (*metrics.registry.collect(), *gateway_metrics(settings), *check_metrics()):
        for sample in family.samples:
            told.setdefault(sample.name, set()).update(sample.labels)
    return told


def check_metrics() -> Iterator[Any]:
    topics: Any = SimpleNamespace(check=Check())
    return CheckPages(topics).collect()


def gateway_metrics(settings: Settings) -> Iterator[Any]:
    log = LogKernel(StreamIdentity("", "", "", 1, "s_b", Limits(), "murmur2", 1), KernelState({0: 0}, {}, {}))
    spool: Any = SimpleNamespace(count=0)
    pages = GatewayPages(BrokerMonitor(settings.bootstrap, settings.raw_topic))
    pages.figures = look_at(Bridge(log, LogHistory(), spool, say=print), spool, [])
    return pages.collect()


def check_expression(expression: str, told: dict[str, set[str]]) -> set[str]:
    """Read an expression as Prometheus does; every metric and label that it selects exists. Its labels are returned."""
    labels: set[str] = set()
    for node in walk(promql_parser.parse(expression)):
        if not isinstance(node, promql_parser.VectorSelector):
            continue
        assert node.name in told or node.name in FROM_PROMETHEUS, f"{node.name} is exported by no job"
        labels |= told.get(node.name, set())
        for matcher in node.matchers.matchers:
            assert matcher.name in told.get(node.name, set()) | {"job", "instance"}, (node.name, matcher.name)
            assert matcher.name != "code" or matcher.value in CODES
    return labels


def walk(node: Any) -> Iterator[Any]:
    """An expression and all within it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector", "args"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else [inner]:
            if isinstance(one, promql_parser.Expr | promql_parser.VectorSelector):
                yield from walk(one)


def test_a_misspelt_metric_or_label_is_found() -> None:
    told = told_metrics()
    assert "partition" in check_expression("sum by (instance) (rate(precede_lag_records[5m])) > 1", told)
    for wrong in ("precede_lag_record > 1", 'sum(deriv(precede_healthy{order="x"}[15m:1m])) > 0', "1 < precede_x"):
        with pytest.raises(AssertionError):
            check_expression(wrong, told)


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_speaks_of_metrics_and_labels_that_exist(name: str) -> None:
    labels = check_expression(ALARMS[name]["expr"], told_metrics())
    summary = ALARMS[name]["annotations"]["summary"]
    assert set(re.findall(r"\$labels\.(\w+)", summary)) <= {"instance"} | labels


def test_no_alarm_goes_by_a_single_dead_letter() -> None:
    letters, read = "precede_dead_letter_records_total", "precede_read_records_total"
    by_letters = {name: rule for name, rule in ALARMS.items() if letters in rule["expr"]}
    assert set(by_letters) == {"PrecedeDeadLetters", "PrecedeBackpressure"}
    share = rf"^rate\({letters}\S*\[(\d+m)\]\) / .*\brate\({read}\[\1\]\) > 0\.\d+$"
    for name, rule in by_letters.items():
        assert [rule["for"]] == re.findall(share, rule["expr"]), f"{name}: a letter shows in the rate for so long"


DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "chart" / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("title", [panel["title"] for panel in PANELS])
def test_a_panel_of_the_dashboard_shows_metrics_and_labels_that_exist(title: str) -> None:
    told = told_metrics()
    [panel] = [panel for panel in PANELS if panel["title"] == title]
    for target in panel["targets"]:
        labels = check_expression(target["expr"].replace("$instance", ".*"), told)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= {"instance"} | labels


def test_the_dashboard_shows_every_metric_that_an_alarm_goes_by() -> None:
    def metrics(text: str) -> set[str]:
        return set(re.findall(r"\bprecede_\w+", text))

    shown = metrics(json.dumps(DASHBOARD))
    seldom = {
        "precede_query_restarts_total",
        "precede_check_broken_groups",
        "precede_history_difference_rows",
    }  # the alarm and its page say all there is to say
    assert set().union(*(metrics(alarm["expr"]) for alarm in ALARMS.values())) - shown == seldom


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(place["x"] + x, place["y"] + y) for place in places for x in range(place["w"]) for y in range(place["h"])]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_prometheus_and_grafana_of_the_compose_file_find_the_job_the_alarms_and_the_dashboard() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text())
    inside = {place.split(":")[1] for place in SERVICES["prometheus"]["volumes"]}
    assert set(prometheus["rule_files"]) <= inside
    for scraped in prometheus["scrape_configs"]:
        for target in scraped["static_configs"][0]["targets"]:
            name, port = target.split(":")
            assert port == str(host_and_port(SERVICES[name]["environment"]["PRECEDE_METRICS"])[1])
    assert {scraped["job_name"] for scraped in prometheus["scrape_configs"]} >= jobs_of_alarms()
    grafana = ROOT / "deploy" / "compose" / "grafana"
    [source] = yaml.safe_load((grafana / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:" + SERVICES["prometheus"]["ports"][0].rsplit(":", 1)[1]
    [provider] = yaml.safe_load((grafana / "dashboards" / "precede.yml").read_text())["providers"]
    shown = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert shown.startswith(provider["options"]["path"] + "/")
    assert shown in {place.split(":")[1] for place in SERVICES["grafana"]["volumes"]}


def jobs_of_alarms() -> set[str]:
    return {job for alarm in ALARMS.values() for job in re.findall(r'job="([^"]+)"', alarm["expr"])}


def test_the_alarms_are_rules_as_prometheus_reads_them() -> None:
    assert set(RULES) == {"groups"}
    for group in RULES["groups"]:
        assert set(group) == {"name", "rules"}
    for name, rule in ALARMS.items():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in ("page", "warn")


RUNBOOK = ROOT / "docs" / "runbook"


def test_the_runbook_has_a_page_for_every_alarm_and_for_no_other() -> None:
    assert {page.stem for page in RUNBOOK.glob("Precede*.md")} == set(ALARMS)
    listed = re.findall(r"^\| \[(Precede\w+)\]\((\w+)\.md\)", (RUNBOOK / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((name, name) for name in ALARMS)


@pytest.mark.parametrize("name", ALARMS)
def test_a_page_of_the_runbook_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    text = (RUNBOOK / f"{name}.md").read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert titles == [name, "What it means", "What to look at", "What to do"]
    assert all(part.strip() for part in re.split(r"^#+ .*$", text, flags=re.MULTILINE)[1:][1:])
    assert ALARMS[name]["annotations"]["runbook"] == f"docs/runbook/{name}.md"


def test_the_runbook_says_of_every_code_whose_matter_it_is() -> None:
    page = (RUNBOOK / "PrecedeDeadLetters.md").read_text()
    assert {code for code in CODES if f"`{code}`" not in page} == set()


def test_the_guide_names_every_metric_that_a_job_tells() -> None:
    guide = "".join((ROOT / "docs" / "how-to" / f"{name}.md").read_text() for name in ("operate", "gateways", "check"))
    families = {
        re.sub(r"_(bucket|count|sum|created)$", "", name) for name in told_metrics() if name.startswith("precede")
    }
    missing = {name for name in families if f"`{name}" not in guide}
    assert not missing
