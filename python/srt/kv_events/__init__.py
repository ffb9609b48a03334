"""KV events: what an engine's prefix cache holds, published for routers of other projects."""
