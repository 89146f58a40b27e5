"""Search in documents: a local index, an HTTP retriever or a web API behind one `search` tool."""
