"""What commands print of plans, explanations and calibrations."""
