"""The gates: did a change make a step worse? `exact` compares what the compiler says, `paired` compares times.

The command is `results.regress`.
"""
