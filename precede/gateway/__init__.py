"""The program `precede gateway`: the bridge between segments and the log.

log_kernel.py      the kernel over the raw topic: what the log has, took and refused
history.py         what the log had before: membership records, and the last messages
publish_queue.py   what goes up, and when
segment_side.py    one segment: what goes down, and what its peers are told
bridge.py          all segments and the log; pure, as the four above
files.py           on the disk: what the log lacks, and the history without the messages
raw_topic.py       the consumer of the raw topic, and of what the job asks for
start.py           what a gateway begins with, and keeps for its next start
run.py             one run: the loop between segments and log
status.py          what it shows of itself

Time comes in as milliseconds that never run back, and chance from a generator that is handed in.
"""
