"""The report: one self-contained HTML file of a run or a comparison, written without Streamlit."""
