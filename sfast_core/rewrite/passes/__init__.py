"""The passes, a file each. What several look for lies beside this folder; none knows another."""
