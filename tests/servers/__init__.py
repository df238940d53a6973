"""Real servers for the tests, a module each: started on a free loopback port, stopped by process id."""

from tests.servers.base import Server, StartError, free_port, listens
from tests.servers.redis import RedisServer

__all__ = ["RedisServer", "Server", "StartError", "free_port", "listens"]
