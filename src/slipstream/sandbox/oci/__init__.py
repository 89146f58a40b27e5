"""The `oci` provider: sandboxes that are containers of podman or docker."""
