"""Systems side by side on one prompt file: measurement, statistics and presentation, each in files of its own.

`systems.py` says what a system is and how to add one; `measure.py` decodes, `statistics.py` counts, the rest shows.
"""
