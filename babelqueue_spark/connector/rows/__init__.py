"""Between Spark's rows and messages: the columns of a read and of a write, ids, dead-letter blocks."""
