"""The only package that opens logs, holds the supervisor or asks the machine: rows in, rows out.

Readers are opened for one tick and closed again, so nothing is shared between Streamlit's threads.
"""
