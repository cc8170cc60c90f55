"""An activation, a rotation and quantising to 8 bits with a scale for each row, in one pass."""
