"""Decides who may use the dashboard: before Streamlit sees a request, and by code instead of configuration.

`policy` holds the rules as pure functions, `peer` names the user behind a loopback connection, `credentials`
handles token and cookie, `options` judges Streamlit's options in effect, and `middleware` puts them together.
"""
