"""Checks of a machine, a broker, a journal and a cluster: what is well, and what to do where it is not.

They import a package when they need it, so that they work where packages are missing.
"""
