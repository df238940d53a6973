"""For spark-submit: see `babelqueue_spark/jobs/catalog.py`."""

import sys

from babelqueue_spark.jobs.catalog import main

sys.exit(main())
