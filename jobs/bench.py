"""For spark-submit: see `babelqueue_spark/jobs/bench.py`."""

import sys

from babelqueue_spark.jobs.bench import main

sys.exit(main())
