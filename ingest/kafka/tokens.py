"""Tokens for Kafka by OAUTHBEARER, from a function of the user's: `module:function`.

The function takes no argument and returns the token and when it expires, in seconds since 1970. librdkafka asks for a
new one before the old one expires; Spark's reader asks by an endpoint (token_endpoint.py).
"""

import time
from collections.abc import Callable
from importlib import import_module
from typing import cast

from precede.udfs.errors import Refused

Token = tuple[str, float]

_failures: dict[str, str] = {}
"""By provider, why it gave no token when it was asked last."""


def provider(named: str) -> Callable[[], Token]:
    """The function of this name. Raises Refused where there is none."""
    module, _, function = named.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise Refused(
            f"The setting sasl_token_provider is {named}, but must be module:function, and that cannot be imported "
            f"({error})."
        ) from error
    if not callable(found):
        raise Refused(f"The setting sasl_token_provider is {named}, which is not a function.")
    return found  # type: ignore[no-any-return]


def token_from(named: str) -> Token:
    """A new token; the reason why there is none is kept for the sentence that tells it."""
    try:
        token, expires_s = cast(tuple[object, object], provider(named)())
        if not isinstance(token, str) or not isinstance(expires_s, int | float):
            raise TypeError("it must return the token and when it expires, in seconds since 1970")
        if expires_s <= time.time():
            raise ValueError("the token that it returned has expired")
    except Exception as error:
        _failures[named] = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise
    _failures.pop(named, None)
    return token, float(expires_s)


def why_none(named: str) -> str | None:
    """Why there was no token when one was asked for last; None where there was one."""
    return _failures.get(named)
