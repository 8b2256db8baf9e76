"""The questions, in the order of the table."""

from benchmarks.question import Question
from benchmarks.questions import (
    agentic_1mb,
    agentic_100kb,
    context_reply,
    growth,
    growth_streams,
    health_under_load,
    links,
    paced_streams,
    plain_1mb,
    small_chat,
    stream_flat_out,
    two_legs,
    two_processes,
    worker_streams,
)

QUESTIONS: tuple[Question, ...] = (
    small_chat.QUESTION,
    two_legs.QUESTION,
    stream_flat_out.QUESTION,
    paced_streams.QUESTION,
    agentic_100kb.QUESTION,
    agentic_1mb.QUESTION,
    plain_1mb.QUESTION,
    context_reply.QUESTION,
    health_under_load.QUESTION,
    two_processes.QUESTION,
    worker_streams.QUESTION,
    growth.QUESTION,
    growth_streams.QUESTION,
    *links.QUESTIONS,
)
