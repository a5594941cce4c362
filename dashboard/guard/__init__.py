"""Access control of the dashboard, ahead of Streamlit and in code instead of configuration.

`policy` contains the rules as pure functions, `peer` identifies the user of a loopback connection,
`credentials` handles token and cookie, `options` validates Streamlit's options in effect, and `middleware`
combines them.
"""
