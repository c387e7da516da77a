"""The Helm chart, rendered and compared with the schemas of what the cluster would be asked to make."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from precede import __version__
from precede.command_line import COMMANDS
from precede.commands import bundle
from precede.ingest.kafka import topics
from precede.streaming import settings
from tests.charts import (
    CHART,
    ROOT,
    Object,
    faults,
    of_kind,
    one_of,
    pods,
    refusal,
    render,
    run_helm,
    settings_of,
)
from tests.test_tidy import flags_of

SPARK: Object = {"name": "all", "engine": "spark", "checkpoint": "s3a://b/checkpoint", "delta": "s3a://b/delta"}
SEGMENT = "udp://239.255.70.80:17080%eth0"

EVERYTHING: Object = {
    "image": {"pullSecrets": ["registry"]},
    "settings": {"bootstrap": "k:9092", "shards": 32, "limits": {"held_max": 300000}},
    "jobs": [
        {"name": "low", "engine": "spark", "checkpoint": "s3a://b/low", "raw_partitions": "0-1", "only": "order"},
        {"name": "high", "engine": "process", "raw_partitions": "2-3"},
        SPARK | {"name": "history", "only": "history"},
    ],
    "secrets": {"environment": "kafka-password", "files": "kafka-certificates"},
    "gateway": {"replicas": 2, "segments": [SEGMENT], "hostNetwork": True, "storage": {"className": "fast"}},
    "topics": {"enabled": True},
    "check": {"enabled": True, "groups": ["travel"]},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 9092, "protocol": "TCP"}]}],
    },
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "streaming", "operator": "Exists"}],
}

INSTALLATIONS: dict[str, Object] = {
    "as it comes": {},
    "everything": EVERYTHING,
    "one Spark job": {"jobs": [SPARK]},
    "gateways on a pod network": {"gateway": {"replicas": 3, "segments": [SEGMENT]}},
    "nothing but jobs": {"doctor": {"enabled": False}, "networkPolicy": {"enabled": False}},
}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_everything_that_is_rendered_is_what_its_kind_allows(name: str) -> None:
    objects = render(INSTALLATIONS[name])
    assert objects
    assert [fault for one in objects for fault in faults(one)] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("spark.yaml", "restartPolicy:", "restartPolice:"),
        ("spark.yaml", "onFailureRetries: {{", "onFailureRetries: x{{"),
        ("spark.yaml", "terminationGracePeriodSeconds:", "terminationGraceSeconds:"),
        ("process.yaml", "strategy: {type: Recreate}", "strategy: {kind: Recreate}"),
        ("gateway.yaml", "volumeClaimTemplates:", "volumeClaimTemplate:"),
        ("gateway.yaml", "maxUnavailable: 1", "maxUnavailablePods: 1"),
        ("topics.yaml", "partitions: {{", "partition: {{"),
        ("monitoring.yaml", "podMetricsEndpoints:", "podMetricEndpoints:"),
        ("monitoring.yaml", "targetLabel: job", "target: job"),
        ("network.yaml", "podSelector:\n    matchLabels:", "podSelector:\n    labels:"),
        ("doctor.yaml", "backoffLimit: 0", "backOffLimit: 0"),
        ("_helpers.tpl", "livenessProbe:", "livelinessProbe:"),
    ],
)
def test_a_typo_in_a_template_is_found(tmp_path: Path, file: str, right: str, wrong: str) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart")
    template = chart / "templates" / file
    text = template.read_text()
    assert right in text
    template.write_text(text.replace(right, wrong))
    assert [fault for one in render(EVERYTHING, chart=chart) for fault in faults(one)]


@pytest.mark.parametrize(
    "values",
    [
        {"gatewy": {"replicas": 2}},
        {"gateway": {"replica": 2}},
        {"gateway": {"segments": ["239.255.70.80:17080"]}},
        {"jobs": [{"engine": "process"}]},
        {"jobs": [{"name": "order", "engine": "flink"}]},
        {"spark": {"conf": {"executor.memory": "2g"}}},
        {"topics": {"partitions": "four"}},
        {"settings": {"sasl_password": "secret"}},
    ],
)
def test_a_typo_in_the_values_is_refused(values: Object) -> None:
    assert "values don't meet the specifications of the schema" in refusal(values)


@pytest.mark.parametrize("lacks", ["checkpoint", "delta"])
def test_a_spark_job_without_a_place_that_all_pods_reach_is_refused_in_a_sentence(lacks: str) -> None:
    for place in (None, "/data/somewhere"):
        job = {name: value for name, value in SPARK.items() if name != lacks} | ({lacks: place} if place else {})
        assert f"The job all runs on Spark, so its {lacks} must be a URI" in refusal({"jobs": [job]})


def test_a_job_that_only_orders_needs_no_delta() -> None:
    job = {name: value for name, value in SPARK.items() if name != "delta"}
    assert one_of(render({"jobs": [job | {"only": "order"}]}), "SparkApplication")


def test_helm_finds_nothing_to_complain_of() -> None:
    done = run_helm("lint", "--strict")
    assert done.returncode == 0, done.stdout


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {__version__}\n" in chart
    assert f"\nappVersion: {__version__}\n" in chart


def test_every_value_has_a_type_in_the_schema_and_every_typed_value_a_default() -> None:
    import yaml

    def names(found: Object, schema: Object, path: str = "") -> set[str]:
        typed = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            return set()
        odd = {f"{path}{name}" for name in set(found) ^ set(typed) - {"global"}}
        inner = (names(found[name], typed[name], f"{path}{name}.") for name in set(found) & set(typed) if found[name])
        return odd.union(*(part for part in inner))

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert names(values, json.loads((CHART / "values.schema.json").read_text())) == set()


# What the objects mean


def test_every_pod_runs_as_nobody_special_and_changes_nothing_but_its_volumes() -> None:
    found = pods(render(EVERYTHING))
    assert len(found) == 2 * 2 + 1 + 1 + 3, sorted(found)
    for name, template in found.items():
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert f"USER {security['runAsUser']}" in (ROOT / "deploy" / "Dockerfile").read_text()
        for container in template["spec"]["containers"]:
            own = container["securityContext"]
            assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True), name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            claimed = {"data"} if name.startswith("StatefulSet") else set()
            assert mounted == {volume["name"] for volume in template["spec"]["volumes"]} | claimed, name


def test_every_container_says_what_it_needs() -> None:
    for one in render(EVERYTHING):
        if one["kind"] == "SparkApplication":
            for role in ("driver", "executor"):
                assert {"cores", "memory", "memoryOverhead"} <= set(one["spec"][role])
        elif template := one.get("spec", {}).get("template"):
            for container in template["spec"]["containers"]:
                assert {"cpu", "memory"} <= set(container["resources"]["requests"])
                assert "memory" in container["resources"]["limits"]


def test_a_job_has_the_settings_of_all_its_own_and_those_of_the_chart() -> None:
    objects = render(EVERYTHING)
    low, high = settings_of(objects, "-low"), settings_of(objects, "-high")
    assert (low["shards"], low["raw_partitions"], low["only"]) == (32, "0-1", "order")
    assert low["limits"] == {"held_max": 300000}
    assert low["tasks"] == 2, "instances times cores"
    assert (high["engine"], high["raw_partitions"]) == ("process", "2-3")
    assert "checkpoint" not in high
    assert low["metrics"] == high["metrics"] == "0.0.0.0:9464"


def test_the_settings_that_the_chart_writes_are_read_by_precede(tmp_path: Path) -> None:
    configs = [one for one in of_kind(render(EVERYTHING), "ConfigMap") if "precede.toml" in one["data"]]
    assert len(configs) == 2 * len(EVERYTHING["jobs"]) + 2, "each job has its doctor; the gateways share one; the check"
    for config in configs:
        file = tmp_path / "precede.toml"
        file.write_text(config["data"]["precede.toml"])
        loaded = settings.load({}, {}, file)
        assert (loaded.shards, loaded.limits.held_max) == (32, 300_000)


def test_pods_run_commands_and_words_that_the_image_knows_with_flags_that_exist() -> None:
    words = re.findall(r"^(\w+)\) ", (ROOT / "deploy" / "entrypoint.sh").read_text(), re.MULTILINE)
    for name, template in pods(render(EVERYTHING)).items():
        for container in template["spec"]["containers"]:
            arguments = [word for word in container.get("args", []) if word not in words]
            if arguments:
                assert arguments[0] in COMMANDS, name
                assert {word for word in arguments if word.startswith("--")} <= flags_of(arguments[0]), name
            probe = container.get("livenessProbe")
            assert probe is None or probe["exec"]["command"][1] in words


def test_a_spark_application_runs_what_the_image_holds() -> None:
    application = one_of(render({"jobs": [SPARK]}), "SparkApplication")["spec"]
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert application["mainApplicationFile"] == "local:///opt/main.py"
    assert (ROOT / "deploy" / "main.py").read_text() == bundle.MAIN
    assert "deploy/main.py /opt/" in dockerfile
    command, *flags = application["arguments"]
    assert command in COMMANDS
    assert {flag for flag in flags if flag.startswith("--")} <= flags_of(command)
    assert "PRECEDE_JARS=/opt/jars" in dockerfile
    fetched = re.search(r"spark\.jars ([\w ]+)$", dockerfile, re.MULTILINE)
    assert fetched is not None
    for role in ("driver", "executor"):
        classes = application["sparkConf"][f"spark.{role}.extraClassPath"].split(":")
        assert classes == [f"/opt/jars/{configuration}/*" for configuration in fetched[1].split()]
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"pyspark=={application['sparkVersion']}" in constraints


def test_a_change_of_the_settings_starts_the_pods_again() -> None:
    def marks(values: Object) -> dict[str, Any]:
        found = pods(render(values))
        return {
            name: template["metadata"].get("annotations", {}).get("precede/config") for name, template in found.items()
        }

    before, after = marks(EVERYTHING), marks(EVERYTHING | {"settings": {"bootstrap": "k:9092", "shards": 64}})
    assert {name for name, mark in before.items() if mark == after[name]} == {
        name for name in before if name.endswith(("executor", "doctor"))
    }


def test_a_job_is_ready_by_what_it_does_and_restarted_only_if_it_is_stuck() -> None:
    for name, template in pods(render(EVERYTHING)).items():
        [container] = template["spec"]["containers"]
        if name.endswith(("executor", "doctor")):
            continue
        assert container["ports"] == [{"name": "metrics", "containerPort": 9464}]
        assert container["livenessProbe"]["exec"]["command"] == ["/opt/entrypoint.sh", "alive"]
        assert container["startupProbe"]["exec"]["command"] == ["/opt/entrypoint.sh", "alive"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_a_job_that_was_taken_over_is_not_started_again_and_no_job_without_end() -> None:
    objects = render(EVERYTHING)
    for application in of_kind(objects, "SparkApplication"):
        policy = application["spec"]["restartPolicy"]
        assert policy["type"] == "OnFailure", "the image tells the operator 0 for 3"
        assert 0 < policy["onFailureRetries"] < 100
    deployment = one_of(objects, "Deployment")["spec"]
    assert deployment["strategy"] == {"type": "Recreate"}
    assert deployment["replicas"] == 1
    assert deployment["template"]["spec"]["containers"][0]["args"][0] == "service"


def test_a_gateway_keeps_its_volume_and_has_time_to_publish_it() -> None:
    gateways = one_of(render(EVERYTHING), "StatefulSet")["spec"]
    assert gateways["persistentVolumeClaimRetentionPolicy"] == {"whenScaled": "Retain", "whenDeleted": "Retain"}
    spec = gateways["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 300
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/entrypoint.sh", "drain"]
    arguments = spec["containers"][0]["args"]
    [volume] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "data"]
    assert arguments[arguments.index("--state") + 1].startswith(volume["mountPath"] + "/")
    assert arguments[arguments.index("--segment") + 1] == SEGMENT


def test_gateways_use_the_machines_network_only_where_they_are_told_to_and_then_one_a_machine() -> None:
    asked = one_of(render(EVERYTHING), "StatefulSet")["spec"]["template"]["spec"]
    assert asked["hostNetwork"] is True
    assert asked["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "requiredDuringSchedulingIgnoredDuringExecution" in asked["affinity"]["podAntiAffinity"]
    spec = one_of(render({"gateway": {"replicas": 2}}), "StatefulSet")["spec"]["template"]["spec"]
    assert "hostNetwork" not in spec
    assert of_kind(render(), "StatefulSet") == []


def test_gateways_of_a_pod_network_may_hear_their_segments() -> None:
    objects = render(INSTALLATIONS["gateways on a pod network"])
    assert one_of(objects, "NetworkPolicy", "-segments")["spec"]["ingress"] == [{"ports": [{"protocol": "UDP"}]}]
    assert len(of_kind(render(EVERYTHING), "NetworkPolicy")) == 1


def test_strimzi_s_topics_are_those_that_the_job_would_create() -> None:
    objects = of_kind(render({"topics": {"enabled": True, "partitions": 8}}), "KafkaTopic")
    made = {one["spec"]["topicName"]: one["spec"] for one in objects}
    wanted = {topic.name: topic for topic in topics.wanted(partitions=8)}
    assert set(made) == set(wanted)
    for name, topic in wanted.items():
        config = {key: str(value) for key, value in made[name]["config"].items() if key != "min.insync.replicas"}
        assert made[name]["partitions"] == topic.partitions
        assert topic.wrong(config) == {}
        assert config == topic.settings
    assert all(one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for one in objects)


def test_topics_of_other_names_are_made_under_these() -> None:
    values = {"topics": {"enabled": True}, "settings": {"raw_topic": "Night_raw"}}
    [topic] = [one for one in of_kind(render(values), "KafkaTopic") if one["spec"]["topicName"] == "Night_raw"]
    assert topic["metadata"]["name"] == "night-raw"


def test_what_selects_pods_finds_the_pods_that_it_is_meant_for() -> None:
    objects = render(EVERYTHING)
    labels = {name: template["metadata"]["labels"] for name, template in pods(objects).items()}

    def found(selector: Object) -> set[str]:
        wanted = selector["matchLabels"].items()
        return {name for name, given in labels.items() if wanted <= given.items()}

    jobs = {name for name in labels if name.endswith("driver") or name.startswith("Deployment")}
    gateways = {name for name in labels if name.startswith("StatefulSet")}
    assert found(one_of(objects, "PodMonitor", "-job")["spec"]["selector"]) == jobs
    assert found(one_of(objects, "PodMonitor", "-gateway")["spec"]["selector"]) == gateways
    assert found(one_of(objects, "PodDisruptionBudget", "-gateway")["spec"]["selector"]) == gateways
    [executors] = found(one_of(objects, "PodDisruptionBudget", "-low-executors")["spec"]["selector"])
    assert executors.endswith("night-precede-low executor")
    assert found(one_of(objects, "NetworkPolicy")["spec"]["podSelector"]) == set(labels)
    for kind in ("Deployment", "StatefulSet"):
        for one in of_kind(objects, kind):
            [own] = found(one["spec"]["selector"])
            assert own == f"{kind} {one['metadata']['name']}"


def test_the_monitoring_names_the_jobs_as_the_alarms_select_them() -> None:
    objects = render(EVERYTHING)
    rules = one_of(objects, "PrometheusRule")
    alarms = json.dumps(rules["spec"])
    for monitor in of_kind(objects, "PodMonitor"):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        [job] = [one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert job == ("precede" if monitor["metadata"]["name"].endswith("-job") else "precede-gateway")
    assert set(re.findall(r'job=\\"([^"\\]+)\\"', alarms)) <= {"precede", "precede-gateway"}
    dashboard = one_of(objects, "ConfigMap", "-dashboard")
    assert json.loads(dashboard["data"]["precede.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_a_driver_may_manage_pods_and_nothing_else_has_rights() -> None:
    objects = render(EVERYTHING)
    role = one_of(objects, "Role")
    assert {name for rule in role["rules"] for name in rule["resources"]} == {
        *("pods", "configmaps", "services", "persistentvolumeclaims")
    }
    account = one_of(objects, "ServiceAccount")["metadata"]["name"]
    for name, template in pods(objects).items():
        if not name.endswith("driver"):
            assert template["spec"]["automountServiceAccountToken"] is False, name
    assert {one["spec"]["driver"]["serviceAccount"] for one in of_kind(objects, "SparkApplication")} == {account}
    assert of_kind(render(), "Role") == [], "without a Spark job nobody needs rights"


def test_the_doctor_looks_at_every_job_before_an_installation_and_an_upgrade() -> None:
    objects = render(EVERYTHING)
    doctors = of_kind(objects, "Job")
    assert len(doctors) == len(EVERYTHING["jobs"])
    for doctor in doctors:
        hooks = doctor["metadata"]["annotations"]
        assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"
        [config] = [one for one in doctor["spec"]["template"]["spec"]["volumes"] if one["name"] == "config"]
        given = one_of(objects, "ConfigMap", config["configMap"]["name"])
        assert given["metadata"]["annotations"]["helm.sh/hook"] == hooks["helm.sh/hook"]
        assert int(given["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0, "it must be there first"
        assert doctor["spec"]["backoffLimit"] == 0


def test_the_check_runs_by_its_schedule_over_the_named_groups_and_is_not_tried_again() -> None:
    objects = render(EVERYTHING)
    spec = one_of(objects, "CronJob")["spec"]
    assert spec["schedule"] == "17 3 * * *"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    [container] = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["check", "travel", "--config", "/etc/precede/precede.toml"]
    assert of_kind(render(), "CronJob") == []
