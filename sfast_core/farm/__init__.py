"""A farm: ComfyUI workflows are queued once, and run by as many workers as there are GPUs, on one machine or several.

``python -m sfast_core.farm``.

The queue, its files and the scheduling are plain Python; Ray (:mod:`.ray_fleet`) only starts workers and tells when one
has died. Nothing here depends on the rest of Fast Compile: a worker is a ComfyUI in which this pack is installed.
"""
