"""The one place for the version; hatchling reads it too."""

__version__ = "0.1.0"
