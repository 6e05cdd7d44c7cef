"""The main job on real input: a year of New York flights, the job killed twice, its output proved exact."""
