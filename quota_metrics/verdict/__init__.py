"""Verdicts: how near a client is to its limit, why, and what it feels of it. Plain functions of values; no I/O.

evaluate.py         one client in one window -> its verdicts and the memory for the next one
level_and_reason.py the numbers, the level, its memory, the words of the reason
cause.py            what changed at an onset; changes.py how the client's instances changed
impact.py           what the client feels; client_signals.py which software reports what
victims.py          whom a heavy neighbour slows down
pacing.py           two numbers for clients that pace themselves
thresholds.py       what levels there are and where they begin
window.py           the values from which a verdict follows, and what windows leave for the next one
trend.py            lines through windows
number_words.py     numbers in words
"""
