"""The pure core: state machines, searchers, schedulers and configuration rules.

Nothing here waits, reads a clock, draws randomness or touches a socket. Time, random generators and ids are arguments.
"""
