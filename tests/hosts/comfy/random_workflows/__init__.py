"""Random workflows in ComfyUI as a library: each queue's latent beside plain ComfyUI's of the same seed.

``python -m random_workflows 0 20`` in ``tests/hosts/comfy`` tries the sessions 0 to 19; ``__main__`` says the rest.
A session is a model, a workflow with it, and some queues between which something is changed (:mod:`.session`).
What a workflow may hold: :mod:`.nodes`, :mod:`.loras`, :mod:`.prompts`; models: :mod:`.models`.
"""
