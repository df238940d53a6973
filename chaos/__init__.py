"""`make chaos`: streams and a worker under faults, for minutes or hours, and a ledger that checks them."""
