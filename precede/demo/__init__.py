"""The demo: a broker, the job, a busy group and a view of it.

stage.py          the demo of the job, from the start of a broker to the summary
peers.py          the demo of peers: segments, gateways, and a view of what each has
conversation.py   what the group says, by two couriers
lossy_path.py     a courier that delays, reorders, repeats and loses
lossy.py          a command whose sockets lose datagrams
watch.py          what is observed in the topics of the job
view.py           how that is shown
"""
