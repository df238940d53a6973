"""Where handled messages are remembered: the contract of a store, Redis, SQL."""
