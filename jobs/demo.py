"""For spark-submit: see `babelqueue_spark/jobs/demo.py`."""

import sys

from babelqueue_spark.jobs.demo import main

sys.exit(main())
