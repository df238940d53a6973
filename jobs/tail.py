"""For spark-submit: see `babelqueue_spark/jobs/tail.py`."""

import sys

from babelqueue_spark.jobs.tail import main

sys.exit(main())
