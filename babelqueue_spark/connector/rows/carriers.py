"""What a broker carries beside a body, as forms ask for it."""

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.forms import Carrier


def carrier_of(binding: BaseBinding) -> Carrier:
    """Return what the broker carries."""
    headers = binding.capabilities.headers
    return Carrier(headers, headers and not binding.frames_headers, binding.event_prefix)
