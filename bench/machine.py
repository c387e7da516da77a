"""The machine of a measurement, without its name."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import psutil

from precede.streaming.spark.jars import java


def describe() -> dict[str, str]:
    """Processor, memory and versions."""
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True).stderr
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "java": said.split('"')[1] if '"' in said else said.strip(),
        "spark": version("pyspark"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def load() -> float:
    """How many processes wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)
