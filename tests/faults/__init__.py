"""Deliberate faults in the code: each must be caught by the tests that are named beside it."""
