"""What the services' processes have in common at their outermost layer: logs, signals, parents."""
