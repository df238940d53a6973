"""For spark-submit: see `babelqueue_spark/jobs/drain.py`."""

import sys

from babelqueue_spark.jobs.drain import main

sys.exit(main())
