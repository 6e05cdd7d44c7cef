"""A whole job simulated from one seed: storage, time, processes, people and faults; an auditor after each commit.

python -m tests.faults.simulation run --seeds 1000
python -m tests.faults.simulation run --seed 17 --trace
"""
