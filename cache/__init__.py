"""Records shipped with the package: one folder a device."""
