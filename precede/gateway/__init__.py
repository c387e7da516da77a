"""The program `precede gateway`: the bridge of ingest/gateway on real segments and a real log."""
