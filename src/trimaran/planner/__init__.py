"""Choose a strategy by simulation, and say why."""

from trimaran.planner.candidates import Candidate, PricedJob, evaluate, score
from trimaran.planner.choice import choose, shown, simplicity
from trimaran.planner.epoch import EpochData
from trimaran.planner.pins import NO_PINS, Pins, parse_pins
from trimaran.planner.pipeline_stages import split_stages
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planner.search import search
from trimaran.planner.space import Rejection, enumerate_strategies

__all__ = [
    "NO_PINS",
    "Candidate",
    "EpochData",
    "Pins",
    "PricedJob",
    "Problem",
    "Rejection",
    "Search",
    "choose",
    "enumerate_strategies",
    "evaluate",
    "parse_pins",
    "score",
    "search",
    "shown",
    "simplicity",
    "split_stages",
]
