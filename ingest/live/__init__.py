"""Live reading: the kernel runs in the reader, over the raw topic, and what is delivered is known in milliseconds.

`kernel.py` makes the outputs and compares them with the ordered topic, and `choice.py` decides what is delivered from
which of the two; these do no I/O. `start.py` and `kept_state.py` find what the kernel begins with. `consumer.py` reads
Kafka, and `reader.py` takes one step after the other.
"""
