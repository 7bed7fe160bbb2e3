"""Give stand-ins for the results of operators: by what is known of them, by rules, and by what kernels say."""
