"""What is measured and shown: ``python -m benchmarks.demo``, the benchmarks, and the script that trained the demo's
model.
"""
