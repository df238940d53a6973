"""For spark-submit: see `babelqueue_spark/jobs/serve.py`."""

import sys

from babelqueue_spark.jobs.serve import main

sys.exit(main())
