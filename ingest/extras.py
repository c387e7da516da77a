"""What `pip install precede` leaves out, and what to install where something is missing.

The kernel, the client and the command line need six small packages; everything heavy is in an extra.
"""

from importlib.util import find_spec

from precede.udfs.errors import Refused

EXTRAS = {
    "spark": ("pyspark", "py4j", "delta", "deltalake", "pandas", "pyarrow", "numpy", "xxhash"),
    "delta": ("deltalake", "pyarrow"),
    "keys": ("cryptography",),
    "plot": ("matplotlib",),
    "kafka-python": ("kafka",),
    "broker": ("pyspark",),
}
"""The modules that each extra brings."""


def is_there(extra: str) -> bool:
    """Whether everything of this extra is installed."""
    return all(find_spec(module) is not None for module in EXTRAS[extra])


def need(extra: str, purpose: str, *, otherwise: str = "") -> None:
    """Raise a sentence that says what to install, unless everything of this extra is there.

    `otherwise` is a sentence about what does without it.
    """
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        lacks = f"{purpose} needs {missing[0]}, which is not installed: pip install 'precede[{extra}]'."
        raise Refused(f"{lacks} {otherwise}".rstrip())
