import pytest

pytest.register_assert_rewrite("babelqueue_spark.testing")
