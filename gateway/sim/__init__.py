"""The simulator: gateway decisions (`desk`) over models of engines (`predictor`), on a heap of instants.

It runs the same decision code as the serving process and nothing of its shell; it never reads a clock or a socket.
"""
