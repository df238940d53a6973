"""The worker beside other programs that call handlers: a module each, and `compare`, which measures all."""
