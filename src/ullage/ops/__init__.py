"""Looks at engines from outside and says what it measured."""
