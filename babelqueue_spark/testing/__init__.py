"""What a binding is tested with: the contract suite, which needs pytest and no broker but your own.

from babelqueue_spark.testing import SECRET, BindingContract

class TestMyBroker(BindingContract):
    binding_class = MyBinding
    ...
"""

import pytest

pytest.register_assert_rewrite("babelqueue_spark.testing.contract")

from babelqueue_spark.testing.contract import (  # noqa: E402 (its assertions are rewritten first)
    SECRET,
    BindingContract,
    LogContract,
)

__all__ = ["SECRET", "BindingContract", "LogContract"]
