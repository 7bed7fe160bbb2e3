"""Cut a Graph into regions of native code: their values, the windows of memory they read, and where indices point."""
