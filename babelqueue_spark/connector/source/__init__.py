"""Reading queues and logs: the stream readers and the browsing reader."""
