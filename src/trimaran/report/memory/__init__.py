"""How a memory estimate is told: figures, tables, a chart, plain data, a trace for a viewer."""
