"""What every binding promises, as tests written once.

A broker's test module inherits them, and says only how to reach its server:

    class TestMyBroker(BindingContract):
        binding_class = MyBinding

        @pytest.fixture
        def config(self, my_server):
            return BindingConfig(url=my_server.url, visibility_timeout=60)

        @pytest.fixture
        def unreachable(self):
            return BindingConfig(url=f"my://user:{SECRET}@127.0.0.1:1/")

Nothing is skipped: where a binding's `capabilities` say that it lacks something, the test asserts what
the contract says of such a binding. Class attributes narrow the examples to what a broker can carry.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("steps", "silence", "common", "queues", "logs"))
)

from babelqueue_spark.testing.common import Contract  # noqa: E402 (their assertions are rewritten first)
from babelqueue_spark.testing.logs import LogContract  # noqa: E402
from babelqueue_spark.testing.proxy import Proxy, SilentServer  # noqa: E402
from babelqueue_spark.testing.queues import BindingContract  # noqa: E402
from babelqueue_spark.testing.steps import (  # noqa: E402
    ENVELOPE,
    MIB,
    PATIENCE,
    SECRET,
    Connect,
    assert_empty,
    assert_safe,
    await_backlog,
    claim_some,
    claim_until_empty,
    claimed_by_a_killed_process,
    consume,
    eventually,
    in_processes,
    joined,
    outgoing,
    publish_all,
    publish_marked,
    take,
    through_ipc,
    unless_busy,
)

__all__ = [
    "ENVELOPE",
    "MIB",
    "PATIENCE",
    "SECRET",
    "BindingContract",
    "Connect",
    "Contract",
    "LogContract",
    "Proxy",
    "SilentServer",
    "assert_empty",
    "assert_safe",
    "await_backlog",
    "claim_some",
    "claim_until_empty",
    "claimed_by_a_killed_process",
    "consume",
    "eventually",
    "in_processes",
    "joined",
    "outgoing",
    "publish_all",
    "publish_marked",
    "take",
    "through_ipc",
    "unless_busy",
]
