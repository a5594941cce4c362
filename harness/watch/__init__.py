"""Everything that watches one training in its process; knows no model, data or settings of ours."""
