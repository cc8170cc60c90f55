"""What a user gives up of exactness for speed: how much is allowed, where it is spent, and programs that use earlier
steps' work again.
"""
