"""Jobs for spark-submit; each has `--help`."""
