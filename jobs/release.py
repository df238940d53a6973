"""For spark-submit: see `babelqueue_spark/jobs/release.py`."""

import sys

from babelqueue_spark.jobs.release import main

sys.exit(main())
