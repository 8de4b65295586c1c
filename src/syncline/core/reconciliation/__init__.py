"""Finds out how two sets of ids differ, in few bytes and few round trips.

An `Initiator` asks, a `Responder` answers; what they say to one another are the values of
`syncline.values.reconciliation`. Neither waits, sends or draws lots.
"""
