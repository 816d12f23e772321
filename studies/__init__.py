"""Experiments with a real broker on this machine, and their reports in docs/studies/.

Measurements come from captures (tshark), from the kernel (/proc, ss) and from the broker ($SYS). The broker
is a separate process, on free ports of 127.0.0.1 or inside network namespaces. The wheel leaves this package
out.
"""
