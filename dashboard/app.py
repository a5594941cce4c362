"""The dashboard's entry: `streamlit run dashboard/app.py` serves the page behind the guard."""

import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from dashboard.guard.entrance import house_of, lifespan, static_files
from dashboard.guard.middleware import Guard

_HERE = Path(__file__).parent
_HOUSE = house_of(os.environ)

# Streamlit finds this line by reading the file: it has to be a plain assignment.
app = st.App(
    _HERE / "page.py",
    middleware=[Middleware(Guard, house=_HOUSE)],
    routes=[static_files(_HERE / "static")],
    lifespan=lifespan(_HOUSE, os.environ),
)
