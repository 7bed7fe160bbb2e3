"""The networks that are measured: written plainly, as their public descriptions have them, with random weights."""
