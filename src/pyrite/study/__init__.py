"""Studies: experiments with the real broker on this machine, and the reports that are written of them.

What is measured is captured from the wire (tshark), read from the kernel (/proc, ss) and asked of the broker
($SYS); the broker runs in a process of its own, on free ports of 127.0.0.1 or inside network namespaces.
"""
