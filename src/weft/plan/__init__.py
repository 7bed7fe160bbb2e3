"""Plan how a Graph is computed: kernels, tiles, lanes and memory, as plain data that codegen follows."""
