"""The CUDA executor. Nothing here is imported on a machine without a device."""
