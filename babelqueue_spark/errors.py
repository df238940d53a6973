"""The errors a user of the connector can meet; each message says what to do and holds no secret."""


class BabelQueueError(Exception):
    """Base of every error the connector raises on purpose."""


class OptionError(BabelQueueError, ValueError):
    """An option is unknown, missing, or has a value that cannot be used."""


class BrokerError(BabelQueueError):
    """The broker refused, or could not be reached."""


class JournalError(BabelQueueError):
    """The journal cannot be used: its storage, its owner or its content."""


class DataLossError(JournalError):
    """Spark asks for messages that neither the journal nor the log holds any more."""


class LogEndedError(DataLossError):
    """A log ends before an offset that it once had; what it has was read."""


def missing_package(what: str, package: str, extra: str) -> OptionError:
    """An error for `what`, which needs an optional dependency that is not installed."""
    return OptionError(
        f"{what} needs the Python package '{package}' on driver and executors: "
        f'pip install "babelqueue-spark[{extra}]"'
    )
