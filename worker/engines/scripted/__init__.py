"""An engine without a model: deterministic tokens on a schedule, and every fault on demand. For tests and load.

    script           what a request is told to say and when: options of the engine, markers in a prompt, and faults
    model            the vocabulary, and answers as a function of prompt, sampling and position
    schema_instance  what is said under a JSON Schema
    clock            where its time comes from
    sequence         one sequence's progress
    state            what a context leg hands over
    engine           the contract of `worker/engines/base.py` over all of that: one timer for all sequences

Options of the engine, and markers in a prompt such as `[[text:Hello]]`, `[[tokens=200]]` or `[[fault:die_after=3]]`, say what
should happen; `script.Script` and `engine.Settings` list them. Nothing here sleeps: time is the clock's, and tests bring their own.
"""

from worker.engines.scripted.engine import ScriptedEngine, Settings, create

__all__ = ["ScriptedEngine", "Settings", "create"]
