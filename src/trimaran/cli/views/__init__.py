"""Pages of commands on plans, explanations, placements and calibrations."""
