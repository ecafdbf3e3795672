"""Where and how clients run: `base` says what every engine does, the other files how each does it."""
