"""``/v1/files`` and ``/v1/batches`` of OpenAI's API."""
