"""The data of the pages: the only package that opens logs, uses the supervisor or samples the machine.

A reader is opened for one tick and closed again, so nothing is shared between Streamlit's threads.
"""
