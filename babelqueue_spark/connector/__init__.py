"""The connector proper: between Spark's rows and the brokers' messages.

`source` reads, `sink` writes, `rows` converts, `options` checks what users say. It stands on bindings,
journal and schemas; worker and exchange stand on it.
"""
