"""What a broker carries beside a body, as forms ask for it."""

import pyarrow as pa

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.forms import Carrier


def carrier_of(binding: BaseBinding) -> Carrier:
    """Return what the broker carries."""
    headers = binding.capabilities.headers
    return Carrier(headers, headers and not binding.frames_headers, binding.event_prefix)


def carried_headers(headers: pa.MapArray, binding: BaseBinding) -> pa.MapArray:
    """Return the headers of copies; null where the broker carries none."""
    carries = binding.capabilities.headers or binding.kept_headers
    return headers if carries else pa.nulls(len(headers), headers.type)
