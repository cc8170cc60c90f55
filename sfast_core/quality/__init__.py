"""What a user gives up of exactness for speed: how much, where it is spent, and steps that reuse earlier work."""
