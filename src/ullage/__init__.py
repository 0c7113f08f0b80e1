"""Ullage serves large language models under a memory budget that is kept to the byte."""

__version__ = "0.1.0"
