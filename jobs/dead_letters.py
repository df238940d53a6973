"""For spark-submit: see `babelqueue_spark/jobs/dead_letters.py`."""

import sys

from babelqueue_spark.jobs.dead_letters import main

sys.exit(main())
