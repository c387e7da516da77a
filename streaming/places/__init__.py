"""Where the job keeps its files: folders of this machine, and stores that a URI names."""
