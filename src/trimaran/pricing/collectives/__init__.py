"""Time of messages and collectives between devices: formulas, published measurements, and a fit for other machines.

`links` says which links a message crosses, and what joins a group of devices. `formulas` and `parameter_servers` have
the algorithms' formulas. `prediction` answers for a catalog machine: published curves where there are some; elsewhere
physics on the links between the devices, corrected by published curves of other machines. `algorithms` compares
candidates. `corrections` reads the logs of nccl-tests that a user gives; they replace all other sources.
"""
