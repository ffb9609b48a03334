"""What tokens guessed ahead bring, and where they bring nothing."""
