"""For spark-submit: see `babelqueue_spark/jobs/doctor.py`."""

import sys

from babelqueue_spark.jobs.doctor import main

sys.exit(main())
