"""The scaling study: a job on machines that are not at hand."""
