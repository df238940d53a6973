"""A schema for each URN, without Spark: verdicts on payloads, their types, and which fields are sensitive.

The connector and the catalog stand on it; it reads its documents through `storage`.
"""
