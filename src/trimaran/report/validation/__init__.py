"""Predicted against published figures: scores, tables, the JSON document."""
