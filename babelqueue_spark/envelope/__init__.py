"""The BabelQueue envelope, schema version 1: its frozen wire format as Arrow columns.

`decode` and `encode` turn message bodies into columns and back; `validate` names what is wrong with a
body; `set_attempts`, `dead_letter` and `strip_dead_letter` edit bodies as text, so that every byte they do
not have to change stays. Imports neither Spark nor a broker's client.
"""

from babelqueue_spark.envelope.columns import DEAD_LETTER_TYPE, ENVELOPE_SCHEMA, META_TYPE, SCHEMA_VERSION
from babelqueue_spark.envelope.decoder import decode, validate
from babelqueue_spark.envelope.edits import dead_letter, set_attempts, strip_dead_letter
from babelqueue_spark.envelope.encoder import EnvelopeError, encode
from babelqueue_spark.envelope.reasons import Reason

__all__ = [
    "DEAD_LETTER_TYPE",
    "ENVELOPE_SCHEMA",
    "META_TYPE",
    "SCHEMA_VERSION",
    "EnvelopeError",
    "Reason",
    "dead_letter",
    "decode",
    "encode",
    "set_attempts",
    "strip_dead_letter",
    "validate",
]
