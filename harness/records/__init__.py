"""The rows and closed sets that pass between layers, free of torch."""
