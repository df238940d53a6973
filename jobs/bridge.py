"""For spark-submit: see `babelqueue_spark/jobs/bridge.py`."""

import sys

from babelqueue_spark.jobs.bridge import main

sys.exit(main())
