"""The options of bindings: one grammar for times, sizes and booleans, one way to refuse a value."""

from __future__ import annotations

import difflib
import math
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.errors import OptionError

T = TypeVar("T")

Parsers = Mapping[str, Callable[[str], Any]]
"""Option → parser of its text; its `ValueError` says what the option takes, and nothing of the text."""

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_UNITS = {
    **_SECONDS,
    **dict.fromkeys(("millisecond", "milliseconds", "msec"), _SECONDS["ms"]),
    **dict.fromkeys(("sec", "second", "seconds"), _SECONDS["s"]),
    **dict.fromkeys(("minute", "minutes"), _SECONDS["m"]),
    **dict.fromkeys(("hour", "hours"), _SECONDS["h"]),
    **dict.fromkeys(("day", "days"), _SECONDS["d"]),
}
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_TIME = "a time such as '10s', '5 minutes' or '1 hour'"
_NEVER_SHOWN = re.compile("passw|secret|token|key|credential|signature|jaas|external_id")
_LONGEST_SHOWN = 100
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def takes(what: str) -> Callable[[Callable[[str], T]], Callable[[str], T]]:
    """Make the `ValueError` of a parser say what it takes, and hide the text it was given."""

    def decorate(parse: Callable[[str], T]) -> Callable[[str], T]:
        @wraps(parse)
        def parsed(text: str) -> T:
            try:
                return parse(text)
            except ValueError:
                raise ValueError(what) from None

        return parsed

    return decorate


@takes(_TIME)
def seconds(text: str) -> float:
    """`10s`, `5 minutes`, `1 hour 30 min`, or a bare number of seconds; 0 or more."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return _finite(float(text))
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.lower())
    rest = re.sub(r"(\d+(?:\.\d+)?)\s*([a-z]+)", "", text.lower()).replace("interval", "").strip()
    if not parts or rest or any(unit not in _UNITS for _, unit in parts):
        raise ValueError(text)
    return _finite(sum(float(amount) * _UNITS[unit] for amount, unit in parts))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


@takes(f"{_TIME}, longer than 0")
def duration(text: str) -> float:
    """Return a time longer than 0, in seconds."""
    value = seconds(text)
    if not value:
        raise ValueError(text)
    return value


@takes(f"{_TIME}, longer than 0 and shorter than a day")
def timeout(text: str) -> float:
    """Return a time longer than 0 and shorter than a day, in seconds."""
    value = duration(text)
    if value >= 86_400:
        raise ValueError(text)
    return value


@takes(f"{_TIME}, in whole seconds from 1 to 999,999")
def whole_seconds(text: str) -> int:
    """Return a time from 1 to 999,999 seconds, without a fraction."""
    value = seconds(text)
    if not 1 <= value <= 999_999 or value != int(value):
        raise ValueError(text)
    return int(value)


def milliseconds(least: int, most: int) -> Callable[[str], int]:
    """Make a parser of times in milliseconds, from `least` to `most`; a bare number is milliseconds."""

    @takes(f"milliseconds from {least:,} to {most:,}, or a time such as '10s'")
    def parse(text: str) -> int:
        bare = re.fullmatch(r"\d+", text.strip())
        value = int(text) if bare else round(seconds(text) * 1000)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return parse


@takes("a size such as '64m' or '1g'")
def byte_size(text: str) -> int:
    """`64m`, `1g`, `512 KiB`, or a bare number of bytes; powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ValueError(text)
    return int(match[1]) * _BYTES[match[2]]


@takes("'true' or 'false' (or yes, no, on, off, 1, 0)")
def flag(text: str) -> bool:
    """Parse `true` or `false`, or one of the words that clients and SDKs have for them."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise ValueError(text)
    return value


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Make a parser of whole numbers from `least` to `most`."""
    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,}"

    @takes(f"a whole number {bounds}")
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return parse


count = whole(1, 999_999)

SSL: Parsers = {
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_check_hostname": flag,
}
"""What `tls_context` takes."""


@takes("a text that is not empty")
def name(text: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        raise ValueError(text)
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Make a parser that takes some words, in any case."""

    @takes(f"one of {', '.join(words)}")
    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    return parse


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """The options that a binding takes.

    Attributes:
        broker: precedes the names, with a dot.
        own: parsers of the options, by names in lower case.
        tls: parsers of those that need a URL with TLS.
        tls_scheme: how such a URL starts.
        passed: names that go to the client as they are; None = none.
        aside: ends "… is unknown" where the error has more to say.
        of_client: the client's own name of an option → ours, where they differ.
    """

    broker: str
    own: Parsers
    tls: Parsers = field(default_factory=dict)
    tls_scheme: str = ""
    passed: re.Pattern[str] | None = None
    aside: str = ""
    of_client: Mapping[str, str] = field(default_factory=dict)

    def parse(self, config: BindingConfig, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the values given in a configuration, and in the URL's query, over which options win.

        Names need no underscores: Spark makes `timeZone` `timezone`. `OptionError` for an unknown name
        and for an invalid value.
        """
        from_query = {self._spelt(option): text for option, text in (query or {}).items()}
        given = {self._spelt(option): text for option, text in config.client_options.items()}
        hidden = {self._spelt(option) for option in config.referenced}
        if "url" in config.referenced:
            hidden |= from_query.keys() - given.keys()
        return {
            option: self._value(option, text, shown=option not in hidden)
            for option, text in {**from_query, **given}.items()
        }

    def tls_of(self, values: dict[str, Any], *, secure: bool) -> dict[str, Any]:
        """Take the TLS options out of parsed values; `OptionError` if the URL has no TLS."""
        found = {option: values.pop(option) for option in self.tls if option in values}
        if found and not secure:
            raise OptionError(
                f"{self.broker}.{next(iter(found))} needs a URL that starts with {self.tls_scheme}://"
            )
        return found

    def _spelt(self, option: str) -> str:
        known = {each: each for each in (*self.own, *self.tls)} | dict(self.of_client)
        spelt = {each.replace("_", ""): ours for each, ours in known.items()}
        return spelt.get(option.replace("_", ""), option)

    def _value(self, option: str, text: str, *, shown: bool) -> Any:
        parse = self.own.get(option) or self.tls.get(option)
        if parse is None and self.passed is not None and self.passed.fullmatch(option):
            parse = str
        if parse is None:
            raise OptionError(f"{self.broker}.{option} is unknown{self.aside}: {self._hint(option)}")
        return value_of(self.broker, option, text, parse, shown=shown)

    def _hint(self, option: str) -> str:
        known = sorted((*self.own, *self.tls))
        nearest = difflib.get_close_matches(option, known, n=1)
        return f"did you mean '{self.broker}.{nearest[0]}'?" if nearest else f"use one of {', '.join(known)}"


def value_of(broker: str, option: str, text: str, parse: Callable[[str], Any], *, shown: bool = True) -> Any:
    """Return the value of an option; `OptionError` says what it takes, and shows the text if no secret."""
    try:
        return parse(text)
    except ValueError as error:
        shown = shown and _may_show(option, text)
        value = f"the value {_quoted(text)}" if shown else "a value that is not shown"
        raise OptionError(f"{broker}.{option} has {value}, but takes {error}") from None


def _may_show(option: str, text: str) -> bool:
    """Return whether neither the name speaks of a secret nor the text may be a URL with a login."""
    return not _NEVER_SHOWN.search(option) and "@" not in text


def _quoted(text: str) -> str:
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
    return f"'{cut}'" if cut.isprintable() else repr(cut)


def tls_context(broker: str, tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a TLS context by the `ssl_` options of a binding; reads the files of certificates."""
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
