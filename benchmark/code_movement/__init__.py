"""How much more of a prompt is shared when its constant parts are moved to the front."""
