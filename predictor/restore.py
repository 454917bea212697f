"""A prefix's KV in deeper memory: fetch it, fetch a part, or compute it again; what to keep where, whom to displace.

Tiers lie below HBM, the nearest first (DRAM, NVMe, remote), each with a latency and a bandwidth that all transfers
share. Pure: nothing is moved here; instants come in as `now_s`.
"""
