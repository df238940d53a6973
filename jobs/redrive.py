"""For spark-submit: see `babelqueue_spark/jobs/redrive.py`."""

import sys

from babelqueue_spark.jobs.redrive import main

sys.exit(main())
