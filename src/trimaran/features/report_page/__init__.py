"""`trimaran report`: a run, a plan or a study as one HTML file, with what each knows and nothing else.

run.py     the folder of a run, or its report.json
plan.py    a plan file; one for a target cluster is simulated there
study.py   documents that other commands wrote with --json
"""
