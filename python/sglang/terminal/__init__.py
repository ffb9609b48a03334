"""Commands of the language: a chat, a program from its file, and what both run on."""
