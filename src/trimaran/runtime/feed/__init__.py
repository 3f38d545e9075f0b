"""The training data of a rank: in which order, who loads what, how far ahead, and what that took."""

from trimaran.runtime.feed.agreeing import ALONE, Agreement
from trimaran.runtime.feed.data import (
    check_length,
    check_streamed,
    data_length,
    dataset_length,
    make_dataset,
    make_evaluation_dataset,
)
from trimaran.runtime.feed.feed import Feed
from trimaran.runtime.feed.opening import open_feed
from trimaran.runtime.feed.orders import draw_order, sample_order
from trimaran.runtime.feed.shares import Share, Shares
from trimaran.runtime.feed.streaming import StreamReader
from trimaran.runtime.feed.types import Loading

__all__ = [
    "ALONE",
    "Agreement",
    "Feed",
    "Loading",
    "Share",
    "Shares",
    "StreamReader",
    "check_length",
    "check_streamed",
    "data_length",
    "dataset_length",
    "draw_order",
    "make_dataset",
    "make_evaluation_dataset",
    "open_feed",
    "sample_order",
]
