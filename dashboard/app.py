"""The entry point of the dashboard: `streamlit run dashboard/app.py` serves the pages behind the guard."""

import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from dashboard.guard.entrance import house_of, lifespan, static_files
from dashboard.guard.middleware import Guard

_HERE = Path(__file__).parent
_HOUSE = house_of(os.environ)

# Streamlit finds this assignment by parsing the file, so it has to be a plain one.
app = st.App(
    _HERE / "page.py",
    middleware=[Middleware(Guard, house=_HOUSE)],
    routes=[static_files(_HERE / "static")],
    lifespan=lifespan(_HOUSE, os.environ),
)
