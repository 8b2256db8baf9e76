"""Everything that is made from `schemas/`, and what keeps it from breaking a peer. `python -m tools.schemas` runs it; make does.

catalogue   which types cross a wire, and which messages do
samples     a value of any type: minimal, full, nasty
artefacts   the files of schemas/generated: JSON Schema, OpenAPI, golden frames, the channel's descriptor
drift       whether those on disk are what the types say
compat      whether the types still agree with the last released snapshot
release     writing the next snapshot
"""
