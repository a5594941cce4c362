"""Frame in, Plotly figure (a plain dict) out."""
