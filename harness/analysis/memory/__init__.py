"""How memory is used: who holds it, how close the end is, what grew, what is worth an alert."""
