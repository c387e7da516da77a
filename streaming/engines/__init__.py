"""The engines that run the kernel: what differs between them, each in a file of its own."""
