"""Analysis of step times: phases, bottleneck, slow steps, overhead."""
