"""Faults for a job of the user's: it runs undisturbed, then under faults, and everything it leaves is compared.

`faults.py` says which faults there are and draws rounds from a seed; `child.py` is the process that they are put
into, with `injection.py` and `watched_sink.py`; `rounds.py` runs rounds and `evidence.py` compares what they leave.
"""
