"""For spark-submit: see `babelqueue_spark/jobs/events.py`."""

import sys

from babelqueue_spark.jobs.events import main

sys.exit(main())
