"""TLS of gRPC servers and channels: settings, certificates that are replaced while the process runs, their checks."""
