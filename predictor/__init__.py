"""A model of one serving instance: what a step costs, who runs in it, when a request ends.

A model of an instance includes how it orders its queue. Nothing here reads a clock, does I/O or draws from the
module-level random source; time comes in as `now_s` and answers go out as records.
"""
