"""The byte-true data plane: sans-io framing (http1, sse, splice) and thin Protocols (downstream, upstream, pool)."""
