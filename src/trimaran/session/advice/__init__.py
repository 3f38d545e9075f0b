"""What would help a script that was observed."""

from trimaran.session.advice.gains import LEAST_GAIN
from trimaran.session.advice.remedies import COMPUTE, LIMIT_GAIN, UNCLEAR, advise, doubt, name_limiter

__all__ = ["COMPUTE", "LEAST_GAIN", "LIMIT_GAIN", "UNCLEAR", "advise", "doubt", "name_limiter"]
