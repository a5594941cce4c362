"""What a prediction of memory says, as rows; and as text for the shell."""
