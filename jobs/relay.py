"""For spark-submit: see `babelqueue_spark/jobs/relay.py`."""

import sys

from babelqueue_spark.jobs.relay import main

sys.exit(main())
