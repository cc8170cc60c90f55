"""As above. The webui runs it at launch."""
