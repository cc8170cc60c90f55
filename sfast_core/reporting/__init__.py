"""What happened, for people: reasons as values, the report that counts them, who writes it,
and a saved one read back.
"""
