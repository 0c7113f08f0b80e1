"""How far an engine's next-token distribution is from the float32 reference on the same file.

text ─▶ pieces ─▶ feeding: one row · batch · prefill ─▶ logits of each engine ─▶ divergence ─▶ table, JSON
                                                   └─▶ reference logits, once, on disk ──┘
"""
