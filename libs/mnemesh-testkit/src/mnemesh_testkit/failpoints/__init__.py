"""Failpoints in the processes of a mesh: which ones a process reached, and orders to kill itself at one."""
