"""The laboratory's commands: testbeds, training, benchmarks, papers. They register in ``commands.json`` beside this.

The rules are those of ``netoffload.cli``: a command parses, calls one function of a layer, and prints.
"""
