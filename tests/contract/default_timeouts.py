"""How long a silent broker is waited for where nobody set a timeout: each test takes up to a minute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.testing import Contract, Proxy
from babelqueue_spark.testing.silence import LOCAL_ADDRESS


class DefaultTimeouts(Contract):
    """The contract, and what takes too long to be shipped with it."""

    @pytest.mark.nightly
    @pytest.mark.parametrize("moment", ["accept", "login"])
    def test_a_silent_broker_is_given_up_with_the_default_timeouts(
        self, config: BindingConfig, proxy: Proxy | None, queue: str, moment: str
    ) -> None:
        if proxy is None:
            return
        changed = replace(config, url=LOCAL_ADDRESS.sub(proxy.address, config.url))
        verbs = self._verbs(queue)
        bindings = [self.binding_class(changed) for _ in verbs]
        if moment == "login":
            for binding, verb in zip(bindings, verbs, strict=True):
                verb(binding)
        proxy.freeze()
        self._assert_given_up(bindings, verbs, proxy.address)
