"""Jobs for the command line and for spark-submit: `babelqueue-spark JOB --help`."""
