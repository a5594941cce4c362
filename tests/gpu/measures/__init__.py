"""The measurements of `make gpu-check`, one stage a module, each with a function `measure(context)`."""
