"""AUTOMATIC1111's webui and Forge: the repository in ``extensions/`` is an extension, and ``scripts/fast_compile.py``
its entry.

``accelerator`` decides and puts hooks on (A1111), ``forge`` puts one under the UNet for a sampling, ``surroundings``
and ``lora`` see to what steers that forward besides its arguments. These import nothing of the webui's, so that they
can be tested without one; ``entry``, ``script``, ``settings`` and ``tab`` are what the webui shows, and import it when
they are imported.
"""
