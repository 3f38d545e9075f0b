"""The crossover between data parallelism and a hybrid: values, documents, lines, a drawing."""
