"""What a job's steps wait for, measured on this machine, and what would help."""

from trimaran.session.stalls.profile import profile_stalls

__all__ = ["profile_stalls"]
