"""The Streamlit app. Nothing in it imports torch, not even indirectly."""
