"""Why a prompt was, or was not, in the cache."""
