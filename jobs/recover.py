"""For spark-submit: see `babelqueue_spark/jobs/recover.py`."""

import sys

from babelqueue_spark.jobs.recover import main

sys.exit(main())
