"""``/v1/files`` and ``/v1/batches``, in the words of OpenAI's API."""
