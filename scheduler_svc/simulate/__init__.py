"""Policies tried out without an executor: the real core, a model of what steps cost, a clock that
jumps. `twostroke simulate` is its command line."""
