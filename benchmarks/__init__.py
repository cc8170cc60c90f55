"""What is measured and shown: the benchmarks, the demo, and the script that trained the demo's model."""
