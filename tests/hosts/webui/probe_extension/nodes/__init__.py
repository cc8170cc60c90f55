"""A top-level package of a name that Fast Compile's repository has too: whichever extension is loaded first gets the
name.
"""

OWNER = "probe"
