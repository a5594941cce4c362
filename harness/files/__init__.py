"""Read files that anybody may have written: size limits, regular files alone, plain data."""
