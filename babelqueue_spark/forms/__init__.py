"""The forms of messages: how a body and its headers become columns, and columns a body with headers.

Above: the connector and the worker, which know no form. Below: the envelope.
"""

from babelqueue_spark.forms.babelqueue import BabelQueueForm
from babelqueue_spark.forms.cloudevents import BinaryEvents, CloudEvents
from babelqueue_spark.forms.contract import Carrier, Form, Parts
from babelqueue_spark.forms.plain import JobSource, PlainForm

__all__ = ["ENVELOPES", "FORMS", "Carrier", "Form", "JobSource", "Parts", "form_of"]

FORMS: dict[str, type[Form]] = {
    kind.name: kind for kind in (BabelQueueForm, PlainForm, CloudEvents, BinaryEvents)
}
"""Value of the option `envelope` → form."""
ENVELOPES = BabelQueueForm()


def form_of(name: str, job: JobSource | None = None) -> Form:
    """Return the form of this name; `job` says where bodies without an envelope name theirs."""
    return PlainForm(job) if name == PlainForm.name else FORMS[name]()
