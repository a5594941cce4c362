"""Named scenarios, written as honest logs that are labelled simulated."""
