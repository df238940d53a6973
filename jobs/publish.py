"""For spark-submit: see `babelqueue_spark/jobs/publish.py`."""

import sys

from babelqueue_spark.jobs.publish import main

sys.exit(main())
