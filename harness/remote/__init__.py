"""Runs on other machines: the training writes its log on the node's own disk, and a collector copies it here.

`node` is the node's side and `collecting` the side of the home; neither knows what connects them.
`ray_cluster` connects them by Ray (the extra `stepscope[ray]`) and is the only module that imports it.
"""
