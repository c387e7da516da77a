"""The bridge between segments and the log.

log_kernel.py   the kernel over the raw topic: what the log has, took and refused
past.py         what the log had before: membership records, and the last messages
past_file.py    the same on disk, without the messages
upward.py       what goes up, and when
side.py         one segment: what goes down, and what its peers are told
bridge.py       all segments and the log; pure, as the three above
spool.py        what the log lacks, on disk
raw_topic.py    the consumer of the raw topic, and of what the job asks for
publishing.py   the producer

Time comes in as milliseconds that never run back, and chance from a generator that is handed in.
"""
