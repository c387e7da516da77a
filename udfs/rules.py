"""The version of the rules by which a log becomes a sequence.

A rule is whatever decides the bytes and positions of the output: which records are accepted and refused, what is held
and for what, what is released when and in which order, what is appended. The rules are code, so they can change with a
release. Whenever the same log could give other bytes than before, RULES grows by one. New checks at a start, other
sentences for a person, and anything that only makes the same bytes faster are no change of the rules.

The owner record of each raw partition names the rules, and the raw offset from which they hold. So a job that would
read the log again from its beginning knows that parts of it were ordered by other rules, and a reader that runs the
kernel knows whether it knows the rules.

    2  the first that an owner record names
    3  `create` takes the option `description`, and messages take `meta`; before, both were `malformed`
"""

RULES = 3
"""What this release knows."""
