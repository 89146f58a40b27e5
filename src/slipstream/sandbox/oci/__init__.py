"""The `oci` provider: sandboxes that are podman or docker containers."""
