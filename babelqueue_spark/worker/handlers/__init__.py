"""What users register at a worker, and how it is called: routes, limits, threads and event loops."""
