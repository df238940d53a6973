"""What bindings make of the texts of their options, and of the files of TLS."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from babelqueue_spark.errors import OptionError

Parsers = Mapping[str, Callable[[str], Any]]
"""Option → what makes a value of its text; `ValueError` where that cannot be."""

_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def flag(text: str) -> bool:
    """`true` or `false`."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def switch(text: str) -> bool:
    """A yes or no, in the words that the SDKs and Redis' own client take."""
    value = text.strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(text)


def seconds(text: str) -> float:
    """More than none, and less than a day."""
    value = float(text)
    if not 0 < value < 86_400:
        raise ValueError(text)
    return value


def duration(text: str) -> float:
    """Seconds without a limit, more than none."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """What takes whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


def count(text: str) -> int:
    """A whole number from 1 to below a million."""
    return whole(1, 999_999)(text)


def name(text: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        raise ValueError(text)
    return text


def value_of(broker: str, option: str, text: str, parse: Callable[[str], Any]) -> Any:
    """The value of an option; an `OptionError` does not show the text, which may be a secret."""
    try:
        return parse(text)
    except ValueError:
        raise OptionError(f"{broker}.{option} has a value that cannot be used") from None


def values_of(broker: str, options: Mapping[str, str], parsers: Parsers) -> dict[str, Any]:
    """The values of a binding's options; `OptionError` for what is unknown or cannot be used."""
    found = {}
    for option, text in options.items():
        if option not in parsers:
            raise OptionError(f"{broker}.{option} is unknown: use one of {', '.join(sorted(parsers))}")
        found[option] = value_of(broker, option, text, parsers[option])
    return found


def tls_context(broker: str, tls: Mapping[str, Any]) -> ssl.SSLContext:
    """What TLS is done with, by the `ssl_` options of a binding; reads the files of certificates."""
    try:
        context = ssl.create_default_context(cafile=tls.get("ssl_ca_certs"))
        context.check_hostname = tls.get("ssl_check_hostname", True)
        if "ssl_certfile" in tls:
            password = tls.get("ssl_password", "")  # None would ask at the terminal
            context.load_cert_chain(tls["ssl_certfile"], tls.get("ssl_keyfile"), password)
    except OSError as error:
        given = [f"{broker}.{option}" for option in tls if option in _TLS_FILES]
        raise OptionError(
            f"the files of {', '.join(given)} cannot be used ({error.strerror}): "
            "they must be PEM, and exist on the driver and on the executors"
        ) from None
    return context
