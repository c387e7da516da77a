"""Live reading: the kernel runs in the reader, over the raw topic, and what is delivered is known in milliseconds.

`live_kernel.py` makes the outputs, `comparison.py` compares them with the ordered topic, and `live_reading.py` decides
what is delivered from which of the two; these do no I/O. `live_start.py` and `kept_state.py` find what the kernel
begins with, and `live_reader.py` reads Kafka.
"""
