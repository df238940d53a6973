"""The options of the SQL binding, from the connection string and from `sql.<name>` options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable, one_of, takes
from babelqueue_spark.errors import OptionError


@takes("letters, digits and underscores")
def _identifier(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(text)
    return text


@takes("a name such as Europe/Berlin")
def _zone(text: str) -> ZoneInfo:
    try:
        return ZoneInfo(text)
    except (OSError, LookupError):
        raise ValueError(text) from None


_TABLE = OptionTable(
    broker="sql",
    own={
        "layout": one_of("initphp", "outbox", "debezium", "pgmq"),
        "table": _identifier,
        "failed_table": _identifier,
        "time_zone": _zone,
        "acknowledge": one_of("delete", "archive"),
    },
)
_MEANT = {
    "initphp": {"table", "failed_table", "time_zone"},
    "outbox": {"table", "time_zone"},
    "debezium": {"table"},
    "pgmq": {"acknowledge"},
}
"""Layout → the options that it has, besides `layout`."""
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql"}
_EXTRAS = {"psycopg": '"babelqueue-spark[postgresql]"', "pymysql": '"babelqueue-spark[mysql]"'}
DEFAULT_RETRY_AFTER = 90
LONGEST_RETRY_AFTER = 3650 * 86_400
BUSY_SECONDS = 30
_TIMEOUTS = {
    # read_timeout bounds PyMySQL's login as well; psycopg has none, see `postgresql`.
    "psycopg": {
        "connect_timeout": "10",
        "read_timeout": "25",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    },
    "pymysql": {"connect_timeout": "10", "read_timeout": "25", "write_timeout": "25"},
}


@dataclass(frozen=True, kw_only=True)
class SqlOptions:
    """What the binding makes of its configuration; `retry_after` in whole seconds."""

    url: URL = field(repr=False)
    layout: str
    table: str
    failed_table: str
    time_zone: ZoneInfo
    retry_after: int
    acknowledge: str

    @property
    def silence_limit(self) -> float:
        """Seconds until a server that says nothing is given up: a statement, then another login."""
        if self.url.get_driver_name() not in _TIMEOUTS:
            return BUSY_SECONDS if self.url.get_backend_name() == "sqlite" else math.inf
        connect, read = (float(str(self.url.query[name])) for name in ("connect_timeout", "read_timeout"))
        return read + max(connect, read)

    @classmethod
    def parse(cls, config: BindingConfig) -> SqlOptions:
        given = _TABLE.parse(config)
        layout = given.get("layout", "initphp")
        for name in sorted(given.keys() - _MEANT[layout] - {"layout"}):
            raise OptionError(f"sql.{name} has no meaning with sql.layout={layout}: remove it")
        url = _url(config.url)
        if layout == "pgmq" and url.get_backend_name() != "postgresql":
            raise OptionError("sql.layout=pgmq is for PostgreSQL: give a URL that starts with postgresql://")
        table = given.get("table", "jobs" if layout == "initphp" else "outbox")
        failed_table = given.get("failed_table", f"{table}_failed")
        if failed_table.lower() in (table.lower(), f"{table}_published".lower()):
            raise OptionError(
                "sql.failed_table is the name of another table of ours: give it one that is its own"
            )
        return cls(
            url=url,
            layout=layout,
            table=table,
            failed_table=failed_table,
            time_zone=given.get("time_zone", ZoneInfo("UTC")),
            retry_after=_retry_after(config.visibility_timeout),
            acknowledge=given.get("acknowledge", "delete"),
        )


def _retry_after(seconds: float | None) -> int:
    if seconds is None:
        return DEFAULT_RETRY_AFTER
    if not 1 < seconds <= LONGEST_RETRY_AFTER:
        raise OptionError(
            "option 'visibilityTimeout' takes 2s to 3650 days with broker 'sql', which counts whole seconds"
        )
    return math.ceil(seconds)


def _url(given: str) -> URL:
    """Return a URL whose driver is installed, and which means the same database in each process."""
    try:
        url = _with_driver(make_url(given))
        url.get_dialect().import_dbapi()
    except NoSuchModuleError:
        raise OptionError(
            f"option 'url' names the database '{url.drivername}', which SQLAlchemy does not know"
        ) from None
    except (ArgumentError, ValueError):
        raise OptionError(
            "option 'url' is not a database URL, such as sqlite:////srv/queue.db; special characters of a "
            "password are percent-encoded"
        ) from None
    except ImportError as error:
        raise OptionError(
            f"option 'url' names the database '{url.drivername}', whose Python driver is missing: "
            f"pip install {_EXTRAS.get(error.name or '', error.name)} on driver and executors"
        ) from None
    if "@" in (url.host or ""):
        raise OptionError("option 'url' has an '@' in its password or user: write it as %40")
    if url.get_driver_name() in _TIMEOUTS:
        return _with_timeouts(url, _TIMEOUTS[url.get_driver_name()])
    if url.get_backend_name() != "sqlite":
        return url
    if not url.database or ":memory:" in url.database or url.query.get("mode") == "memory":
        raise OptionError(
            "option 'url' names a database in memory, which other processes cannot see: name a file"
        )
    if not Path(url.database.removeprefix("file:")).is_absolute():
        raise OptionError(
            "option 'url' names a file relative to the working directory, which differs between processes: "
            "write its whole path, with four slashes: sqlite:////srv/queue.db"
        )
    return url.set(query={"timeout": str(BUSY_SECONDS), **url.query})


def _with_timeouts(url: URL, defaults: dict[str, str]) -> URL:
    made = url.set(query={**defaults, **url.query})
    for name in defaults:
        if not str(made.query[name]).isdigit():
            raise OptionError(f"option 'url' has a '{name}' that is not a whole number")
    return made


def _with_driver(url: URL) -> URL:
    driver = _DRIVERS.get(url.drivername)
    return url.set(drivername=f"{url.drivername}+{driver}") if driver else url
