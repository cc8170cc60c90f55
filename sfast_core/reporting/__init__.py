"""What happened, for people: reasons as values, the report that counts them, who writes it, a saved one read back."""
