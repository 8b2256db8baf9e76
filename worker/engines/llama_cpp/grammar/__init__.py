"""Constraints as grammars that llama.cpp can be trusted with.

    characters   sets of characters
    tree         what a grammar is made of, whatever it was written in
    gbnf         grammars as clients write them
    regex        regular expressions
    json_schema  JSON Schemas; json_values, number_range and schema_* are its parts
    factoring    alternatives rearranged so that one character decides between them, where that is possible
    soundness    what is refused: grammars that can get stuck, loop, or are too large
    deciding     what is ambiguous, decided by an automaton, or refused
    writing      the tree as GBNF, spelled so that nothing is left to interpretation
    compiling    all of that, for a constraint of the engine contract

Nothing here knows llama.cpp's library; it is pure Python, and done in the probe's child process.

Two things must never happen, as llama.cpp answers both by ending the process or by not answering at all: a text that the grammar
allows to begin but not to go on from, and a number of open possibilities that grows with the text. `soundness` excludes the first
(every part can be completed with characters that the vocabulary has bytes for), `deciding` the second: one character decides,
always.
"""
