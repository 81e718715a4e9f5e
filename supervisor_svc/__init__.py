"""One machine, one command: starts the services as processes, waits, stops them in order.

It knows the services by their command lines only; it imports none of them.
"""
