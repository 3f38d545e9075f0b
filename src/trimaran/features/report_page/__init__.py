"""`trimaran report`: a run, a plan or a study as one HTML file, with what each knows and nothing else.

make.py    finds out what a path is
plan.py    a plan file; one for a target cluster is simulated there

Pages of runs and of studies, which need no simulation, are in `report/page/`.
"""
