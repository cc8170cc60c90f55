"""A farm: workflows of ComfyUI queued once, run by as many workers as there are GPUs, on one machine or several.

``python -m sfast_core.farm``.

The queue, its files and what goes where are plain Python; Ray (:mod:`.ray_fleet`) only starts workers, and tells when
one has died. Nothing here knows the rest of Fast Compile: a worker is ComfyUI itself, in which this pack is installed.
"""
