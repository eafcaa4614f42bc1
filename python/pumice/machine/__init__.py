"""The devices of this machine, and checks of all parts of an installation."""
