# Each target is a short script in scripts/. Start with `make setup`, then `make test`.

PYTHON ?= python3
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup check test test-all demo bench docs pages compat golden clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-8s %s\n", $$1, $$2}' Makefile

.venv/.stamp: pyproject.toml constraints.txt scripts/setup
	@scripts/setup

setup: .venv/.stamp  ## make .venv with the package and its tools, at the versions of constraints.txt

check: setup  ## style, types and import rules
	@scripts/check

test: setup  ## the checks, then every test but the long sweeps
	@scripts/test

test-all: setup  ## the checks, then every test
	@scripts/test-all

demo: setup  ## train a small network on two processes: plan, run, predicted against measured
	@scripts/demo

bench: setup  ## run the benchmarks, write their results as JSON
	@scripts/bench

docs: setup  ## build the documentation site into site/
	@scripts/docs

pages: setup  ## write the pages that are made from the code, then build the site
	@scripts/docs --pages

compat: setup  ## the tests on the oldest and the newest supported torch; a fresh install with what pip takes today
	@scripts/compat

golden: setup  ## rewrite the golden files; review the difference before you commit it
	@scripts/golden

clean:  ## remove caches and build products; runs/ and the environments stay
	@scripts/clean
